// F16 weights: a texel is 8 of them, two a word, the first in the low half.
const BLOCK_TEXELS: u32 = 4u;
const TEXEL_VEC4S: u32 = 2u;
const HAS_SCALE: bool = false;
const HAS_MINIMUM: bool = false;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let words = select(texel.zw, texel.xy, j == 0u);
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return 1.0;
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return 0.0;
}
