// What both 4-bit formats have in common where nothing shifts: see masked_none.wgsl. Four vec4s of a texel are low nibbles,
// four are high ones.
const MASKS = array<vec4<u32>, 2>(
    vec4<u32>(0xfu, 0xf00u, 0xf0000u, 0xf000000u), vec4<u32>(0xf0u, 0xf000u, 0xf00000u, 0xf0000000u));

fn prepared(texel: vec4<u32>) -> vec4<u32> {
    // The topmost nibble is read as a signed one: with its sign bit turned over it is 8 less than it was.
    return texel ^ vec4<u32>(0x80000000u);
}

fn fitted(x4: vec4<f32>, j: u32) -> vec4<f32> {
    let low = x4 * vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 0.000000059604644775390625);
    if (j < 4u) {
        return low;
    }
    return low * 0.0625;
}
