// F32 weights: a texel is 4 of them.
const BLOCK_TEXELS: u32 = 8u;
const TEXEL_VEC4S: u32 = 1u;
const HAS_SCALE: bool = false;
const HAS_MINIMUM: bool = false;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(texel);
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return 1.0;
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return 0.0;
}
