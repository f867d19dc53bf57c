// The KV cache at home in buffers.
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<f32>>; // [block][kv head][HEAD_VEC4S][BLOCK_SIZE]
@group(0) @binding(5) var<storage, read_write> values: array<vec4<f32>>; // [block][kv head][BLOCK_SIZE][HEAD_VEC4S]

fn put_key(i: u32, key: vec4<f32>) {
    keys[i] = key;
}

fn put_value(i: u32, value: vec4<f32>) {
    values[i] = value;
}
