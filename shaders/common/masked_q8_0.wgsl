// Q8_0 without shifts: see masked_none.wgsl.
const MASKS = array<vec4<u32>, 2>(vec4<u32>(0xffu, 0xff00u, 0xff0000u, 0xff000000u), vec4<u32>());
const OFFSETS = array<vec4<f32>, 2>(vec4<f32>(128.0, 32768.0, 8388608.0, 0.0), vec4<f32>());

fn prepared(texel: vec4<u32>) -> vec4<u32> {
    // A byte with its sign bit turned over is 128 more than it was.
    return texel ^ vec4<u32>(0x00808080u);
}

fn masked4(texel: vec4<u32>, j: u32, word: u32, mask: vec4<u32>, offset: vec4<f32>) -> vec4<f32> {
    let high = vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) & mask));
    return vec4<f32>(high.xyz - offset.xyz, high.w);
}

fn fitted(x4: vec4<f32>, j: u32) -> vec4<f32> {
    return x4 * vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 0.000000059604644775390625);
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    let d = unpack2x16float(words.x);
    return vec2<f32>(select(d.x, d.y, block == 1u), 0.0);
}
