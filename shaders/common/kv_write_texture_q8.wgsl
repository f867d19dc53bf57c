// The KV cache in 8 bits at home in textures, in the order of the buffers, 2,048 texels a row.
@group(0) @binding(KEYS_BINDING) var keys: texture_storage_2d<rg32uint, write>;
@group(0) @binding(VALUES_BINDING) var values: texture_storage_2d<rg32uint, write>;

fn put_key_texel(i: u32, texel: KvTexel) {
    textureStore(keys, vec2<u32>(i & 2047u, i >> 11u), vec4<u32>(texel, 0u, 0u));
}

fn put_value_texel(i: u32, texel: KvTexel) {
    textureStore(values, vec2<u32>(i & 2047u, i >> 11u), vec4<u32>(texel, 0u, 0u));
}
