// Q4_1 (ggml): w = d*q + m, q a nibble; a texel is a block of 32: weight i in the low nibble of byte i, weight i + 16 in the
// high one. Scale word b holds the f16 d (low half) and m (high half) of block b.
const BLOCK_TEXELS: u32 = 1u;
const TEXEL_VEC4S: u32 = 8u;
const HAS_SCALE: bool = true;
const HAS_MINIMUM: bool = true;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let shift = vec4<u32>(0u, 8u, 16u, 24u) + vec4<u32>(j & 4u);
    let nibbles = (vec4<u32>(texel[j & 3u]) >> shift) & vec4<u32>(15u);
    // Nibbles are small: the signed conversion is the cheaper one on CPUs.
    return vec4<f32>(vec4<i32>(nibbles));
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return unpack2x16float(words[block]).x;
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return unpack2x16float(words[block]).y;
}

// What a nibble of 0 stands for.
fn nibble_minimum(words: vec2<u32>, block: u32) -> f32 {
    return block_minimum(words, block);
}
