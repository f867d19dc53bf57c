// The KV cache at home in textures, in the order of the buffers, 2,048 texels a row: see data_texture.wgsl.
@group(0) @binding(4) var keys: texture_storage_2d<rgba32uint, read>; // [block][kv head][HEAD_VEC4S][BLOCK_SIZE]
@group(0) @binding(5) var values: texture_storage_2d<rgba32uint, read>; // [block][kv head][BLOCK_SIZE][HEAD_VEC4S]

fn key_at(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(keys, vec2<u32>(i & 2047u, i >> 11u)));
}

fn value_at(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(values, vec2<u32>(i & 2047u, i >> 11u)));
}
