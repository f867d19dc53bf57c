// What a product is of, at home in a texture, in the order of a buffer, 2,048 texels a row: see data_texture.wgsl.
@group(0) @binding(1) var x: texture_storage_2d<rgba32uint, read>; // [M][x_pitch]

fn x_at(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(x, vec2<u32>(i & 2047u, i >> 11u)));
}

fn x_number(i: u32, c: u32) -> f32 {
    return x_at(i)[c];
}
