// Q8_0 without shifts: see masked_none.wgsl.
fn prepared(texel: vec4<u32>) -> vec4<u32> {
    // A byte with its sign bit turned over is 128 more than it was.
    return texel ^ vec4<u32>(0x00808080u);
}

fn masked4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let w = texel[j];
    let high = bitcast<vec4<i32>>(vec4<u32>(w & 0xffu, w & 0xff00u, w & 0xff0000u, w & 0xff000000u));
    return vec4<f32>(high) - vec4<f32>(128.0, 32768.0, 8388608.0, 0.0);
}

fn fitted(x4: vec4<f32>, j: u32) -> vec4<f32> {
    return x4 * vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 0.000000059604644775390625);
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    let d = unpack2x16float(words.x);
    return vec2<f32>(select(d.x, d.y, block == 1u), 0.0);
}
