// Q8_0 (ggml): w = d*q, q an int8; a texel is 16 of them in order. A scale word is the f16 d of two neighbouring blocks.
const BLOCK_TEXELS: u32 = 2u;
const TEXEL_VEC4S: u32 = 4u;
const HAS_SCALE: bool = true;
const HAS_MINIMUM: bool = false;

fn unpack4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    // Shifted up, then down again as signed integers, so that the sign bit is carried along.
    let high = vec4<u32>(texel[j]) << vec4<u32>(24u, 16u, 8u, 0u);
    return vec4<f32>(bitcast<vec4<i32>>(high) >> vec4<u32>(24u));
}

fn block_scale(words: vec2<u32>, block: u32) -> f32 {
    return unpack2x16float(words.x)[block];
}

fn block_minimum(words: vec2<u32>, block: u32) -> f32 {
    return 0.0;
}
