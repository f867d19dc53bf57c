// The KV cache at home in buffers: see kv_f32.wgsl and its like.
@group(0) @binding(KEYS_BINDING) var<storage, read_write> keys: array<KvTexel>;
@group(0) @binding(VALUES_BINDING) var<storage, read_write> values: array<KvTexel>;

fn put_key_texel(i: u32, texel: KvTexel) {
    keys[i] = texel;
}

fn put_value_texel(i: u32, texel: KvTexel) {
    values[i] = texel;
}
