// Weights where they stand: SwiftShader shifts lane by lane, so weights of 4 and 8 bits are only masked and become numbers
// that are a power of two too large, and x as much smaller. Powers of two are exact: products and sums are what they are.
// Nor does it see that an argument is a constant: what depends on the place in a texel is a constant of the caller's, or every
// four weights would cost a branch.
//
// These formats need none of it.
const MASKS = array<vec4<u32>, 2>();
const OFFSETS = array<vec4<f32>, 2>();

fn prepared(texel: vec4<u32>) -> vec4<u32> {
    return texel;
}

fn masked4(texel: vec4<u32>, j: u32, word: u32, mask: vec4<u32>, offset: vec4<f32>) -> vec4<f32> {
    return unpack4(texel, j);
}

fn fitted(x4: vec4<f32>, j: u32) -> vec4<f32> {
    return x4;
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
