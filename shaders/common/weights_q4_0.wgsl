// Q4_0 (ggml): w = d*(q - 8), q a nibble; a texel is a block of 32: weight i in the low nibble of byte i, weight i + 16 in
// the high one. A scale word is the f16 d of two neighbouring blocks.
const BLOCK_TEXELS: u32 = 1u;
const TEXEL_VEC4S: u32 = 8u;
const HAS_SCALE: bool = true;
const HAS_MINIMUM: bool = false;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let shift = vec4<u32>(0u, 8u, 16u, 24u) + vec4<u32>(j & 4u);
    let nibbles = (vec4<u32>(texel[j & 3u]) >> shift) & vec4<u32>(15u);
    return vec4<f32>(vec4<i32>(nibbles) - vec4<i32>(8));
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return unpack2x16float(words.x)[block];
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return 0.0;
}

// What a nibble of 0 stands for.
fn nibble_minimum(words: vec2<u32>, block: u32) -> f32 {
    return -8.0 * block_scale(words, block);
}
