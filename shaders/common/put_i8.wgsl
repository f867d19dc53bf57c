// vec4 i of a row that starts at `start`, in 8 bits: see quantise.wgsl for the layout. Lane i % 8 of 8 calls it, and all 8 do
// so together: they hold a block, which counts as a whole.
fn put_vec4(start: u32, i: u32, value: vec4<f32>, counts: bool) {
    let lane = i & 7u;
    let block = (i >> 3u) & 1u;
    let unit = start + (i >> 4u) * 10u;
    // Four lanes hold half a block, which has a scale of its own.
    let higher = max(abs(value.xy), abs(value.zw));
    var top = max(higher.x, higher.y);
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    let q = quantised(value, top);
    let words = pair_words(q);
    let next = vec2<u32>(subgroupShuffleXor(words.x, 1u), subgroupShuffleXor(words.y, 1u));
    if ((lane & 1u) == 0u) {
        put_words(unit + block * 4u + (lane >> 1u), vec4<u32>(words, next));
    }
    var whole = (q.x + q.y) + (q.z + q.w);
    whole += subgroupShuffleXor(whole, 1u);
    whole += subgroupShuffleXor(whole, 2u);
    let scale = top / 127.0;
    let share = scale * f32(whole);
    let other_scale = subgroupShuffleXor(scale, 4u);
    let sum = share + subgroupShuffleXor(share, 4u);
    if (lane == 0u) {
        put_words(unit + 8u + block, bitcast<vec4<u32>>(vec4<f32>(scale, other_scale, sum, 0.0)));
    }
}
