// Q4_1 without shifts: see masked_nibbles.wgsl.
const OFFSETS = array<vec4<f32>, 2>(vec4<f32>(0.0), vec4<f32>(0.0, 0.0, 0.0, -2147483648.0));

fn masked4(texel: vec4<u32>, j: u32, word: u32, mask: vec4<u32>, offset: vec4<f32>) -> vec4<f32> {
    let high = vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) & mask));
    return vec4<f32>(high.xyz, high.w - offset.w);
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    return unpack2x16float(select(words.x, words.y, block == 1u));
}
