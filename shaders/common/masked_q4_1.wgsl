// Q4_1 without shifts: see masked_nibbles.wgsl.
fn masked4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let w = texel[j & 3u];
    if (j < 4u) {
        let high = vec4<u32>(w & 0xfu, w & 0xf00u, w & 0xf0000u, w & 0xf000000u);
        return vec4<f32>(bitcast<vec4<i32>>(high));
    }
    let high = vec4<u32>(w & 0xf0u, w & 0xf000u, w & 0xf00000u, w & 0xf0000000u);
    return vec4<f32>(bitcast<vec4<i32>>(high)) + vec4<f32>(0.0, 0.0, 0.0, 2147483648.0);
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    return unpack2x16float(select(words.x, words.y, block == 1u));
}
