// vec4 i of a row that starts at `start`, in 8 bits, if it counts: see quantise.wgsl for the layout. Lane i % 8 of 8 calls it, and
// all 8 do so together: they hold a block, which counts as a whole.
fn put_vec4(start: u32, i: u32, value: vec4<f32>, counts: bool) {
    let lane = i & 7u;
    let unit = start + (i >> 4u) * 12u;
    let higher = max(abs(value.xy), abs(value.zw));
    var top = max(higher.x, higher.y);
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    let q = quantised(value, top);
    let words = pair_words(q);
    let next = vec2<u32>(subgroupShuffleXor(words.x, 1u), subgroupShuffleXor(words.y, 1u));
    var whole = (q.x + q.y) + (q.z + q.w);
    whole += subgroupShuffleXor(whole, 1u);
    whole += subgroupShuffleXor(whole, 2u);
    if (counts && (lane & 1u) == 0u) {
        put_words(unit + ((i >> 1u) & 7u), vec4<u32>(words, next));
    }
    if (counts && (lane & 3u) == 0u) {
        put_words(unit + 8u + ((i >> 2u) & 3u), scale_words(top, whole));
    }
}
