// What all attention kernels bind, and the score of a position that is masked.
struct Params {
    q_pitch: u32,      // vec4s a row of qkv
    y_pitch: u32,      // vec4s a row of y
    num_kv_heads: u32, // key and value heads
    head_group: u32,   // query heads that share a kv head
    table_pitch: u32,  // blocks a row of block_tables
    scale: f32,        // 1 / sqrt(head_dim)
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>; // [M]: token, position, slot, sequence
@group(0) @binding(2) var<storage, read> block_tables: array<u32>; // [sequences][table_pitch]
@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>; // [M][q heads, ...]
// Bindings 4 and 5 are the KV cache: see kv_read_*.wgsl.
// Binding 6 is y, [M][q heads * HEAD_VEC4S]: see y_*.wgsl.

const LOWEST: f32 = -3.0e38;
