// The KV cache at home in buffers: see kv_f32.wgsl and its like.
@group(0) @binding(4) var<storage, read> keys: array<KvTexel>;
@group(0) @binding(5) var<storage, read> values: array<KvTexel>;

fn key_texel(i: u32) -> KvTexel {
    return keys[i];
}

fn value_texel(i: u32) -> KvTexel {
    return values[i];
}
