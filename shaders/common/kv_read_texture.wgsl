// The KV cache at home in textures, in the order of the buffers, 2,048 texels a row: see data_texture.wgsl.
@group(0) @binding(4) var keys: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(5) var values: texture_storage_2d<rgba32uint, read>;

fn key_texel(i: u32) -> KvTexel {
    return textureLoad(keys, vec2<u32>(i & 2047u, i >> 11u));
}

fn value_texel(i: u32) -> KvTexel {
    return textureLoad(values, vec2<u32>(i & 2047u, i >> 11u));
}
