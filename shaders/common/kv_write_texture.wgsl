// The KV cache at home in textures, in the order of the buffers, 2,048 texels a row: see data_texture.wgsl.
@group(0) @binding(4) var keys: texture_storage_2d<rgba32uint, write>; // [block][kv head][HEAD_VEC4S][BLOCK_SIZE]
@group(0) @binding(5) var values: texture_storage_2d<rgba32uint, write>; // [block][kv head][BLOCK_SIZE][HEAD_VEC4S]

fn put_key(i: u32, key: vec4<f32>) {
    textureStore(keys, vec2<u32>(i & 2047u, i >> 11u), bitcast<vec4<u32>>(key));
}

fn put_value(i: u32, value: vec4<f32>) {
    textureStore(values, vec2<u32>(i & 2047u, i >> 11u), bitcast<vec4<u32>>(value));
}
