// BF16 weights: a texel is 8 of them, two a word, the first in the low half. A bf16 is the upper half of an f32.
const BLOCK_TEXELS: u32 = 4u;
const TEXEL_VEC4S: u32 = 2u;
const HAS_SCALE: bool = false;
const HAS_MINIMUM: bool = false;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let words = select(texel.zw, texel.xy, j == 0u);
    return bitcast<vec4<f32>>(vec4<u32>(
        words.x << 16u, words.x & 0xffff0000u,
        words.y << 16u, words.y & 0xffff0000u,
    ));
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return 1.0;
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return 0.0;
}
