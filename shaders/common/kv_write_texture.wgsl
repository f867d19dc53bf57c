// The KV cache at home in textures, in the order of the buffers, 2,048 texels a row: see data_texture.wgsl.
@group(0) @binding(KEYS_BINDING) var keys: texture_storage_2d<rgba32uint, write>;
@group(0) @binding(VALUES_BINDING) var values: texture_storage_2d<rgba32uint, write>;

fn put_key_texel(i: u32, texel: KvTexel) {
    textureStore(keys, vec2<u32>(i & 2047u, i >> 11u), texel);
}

fn put_value_texel(i: u32, texel: KvTexel) {
    textureStore(values, vec2<u32>(i & 2047u, i >> 11u), texel);
}
