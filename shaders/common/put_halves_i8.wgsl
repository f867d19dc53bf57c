// vec2 i of a row that starts at `start`, in 8 bits, if it counts: see quantise.wgsl for the layout. Lane i % 8 of 8 calls it, and
// all 8 do so together: they hold half a block, which counts as a whole.
fn put_vec2(start: u32, i: u32, value: vec2<f32>, counts: bool) {
    let lane = i & 7u;
    let unit = start + (i >> 5u) * 12u;
    var top = max(abs(value.x), abs(value.y));
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    top = max(top, subgroupShuffleXor(top, 4u));
    let own = quantised(vec4<f32>(value, 0.0, 0.0), top).xy;
    let other = vec2<i32>(subgroupShuffleXor(own.x, 1u), subgroupShuffleXor(own.y, 1u));
    let words = pair_words(vec4<i32>(own, other));
    let next = vec2<u32>(subgroupShuffleXor(words.x, 2u), subgroupShuffleXor(words.y, 2u));
    var whole = own.x + own.y;
    whole += subgroupShuffleXor(whole, 1u);
    whole += subgroupShuffleXor(whole, 2u);
    whole += subgroupShuffleXor(whole, 4u);
    if (counts && (lane & 3u) == 0u) {
        put_words(unit + ((i >> 2u) & 7u), vec4<u32>(words, next));
    }
    if (counts && lane == 0u) {
        put_words(unit + 8u + ((i >> 3u) & 3u), scale_words(top, whole));
    }
}
