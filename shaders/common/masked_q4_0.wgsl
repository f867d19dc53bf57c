// Q4_0 without shifts: see masked_nibbles.wgsl.
fn masked4(texel: vec4<u32>, j: u32) -> vec4<f32> {
    let w = texel[j & 3u];
    if (j < 4u) {
        let high = vec4<u32>(w & 0xfu, w & 0xf00u, w & 0xf0000u, w & 0xf000000u);
        return vec4<f32>(bitcast<vec4<i32>>(high)) - vec4<f32>(8.0, 2048.0, 524288.0, 134217728.0);
    }
    let high = vec4<u32>(w & 0xf0u, w & 0xf000u, w & 0xf00000u, w & 0xf0000000u);
    return vec4<f32>(bitcast<vec4<i32>>(high)) - vec4<f32>(128.0, 32768.0, 8388608.0, 0.0);
}

fn block_scales(words: vec2<u32>, block: u32) -> vec2<f32> {
    let d = unpack2x16float(words.x);
    let scale = select(d.x, d.y, block == 1u);
    return vec2<f32>(scale, -8.0 * scale);
}
