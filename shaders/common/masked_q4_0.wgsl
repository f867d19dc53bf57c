// Q4_0 without shifts: see masked_nibbles.wgsl.
const OFFSETS = array<vec4<f32>, 2>(
    vec4<f32>(8.0, 2048.0, 524288.0, 134217728.0), vec4<f32>(128.0, 32768.0, 8388608.0, 0.0));

fn masked4(texel: vec4<u32>, j: u32, word: u32, mask: vec4<u32>, offset: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) & mask)) - offset;
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    let d = unpack2x16float(words.x);
    let scale = select(d.x, d.y, block == 1u);
    return vec2<f32>(scale, -8.0 * scale);
}
