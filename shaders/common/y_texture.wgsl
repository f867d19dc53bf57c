// Rows that a product will read, at home in a texture: see x_texture.wgsl.
@group(0) @binding(Y_BINDING) var y: texture_storage_2d<rgba32uint, write>; // [M][y_pitch]

fn put_y(i: u32, value: vec4<f32>) {
    textureStore(y, vec2<u32>(i & 2047u, i >> 11u), bitcast<vec4<u32>>(value));
}
