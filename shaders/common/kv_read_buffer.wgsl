// The KV cache at home in buffers.
@group(0) @binding(4) var<storage, read> keys: array<vec4<f32>>; // [block][kv head][HEAD_VEC4S][BLOCK_SIZE]
@group(0) @binding(5) var<storage, read> values: array<vec4<f32>>; // [block][kv head][BLOCK_SIZE][HEAD_VEC4S]

fn key_at(i: u32) -> vec4<f32> {
    return keys[i];
}

fn value_at(i: u32) -> vec4<f32> {
    return values[i];
}
