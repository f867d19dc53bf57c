// Rotary embedding (2104.09864) of q, in place, and of k; k and v go into the paged cache. Dimension d of a head turns
// together with d + head_dim/2. A thread turns one vec4 against its partner, or copies one vec4 of v.
struct Params {
    pitch: u32,        // vec4s a row of qkv
    num_heads: u32,    // query heads
    num_kv_heads: u32, // key and value heads
    head_vec4s: u32,   // vec4s of a head, even
    block_size: u32,   // slots of a KV block
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>; // [M]: token, position, slot, sequence
@group(0) @binding(2) var<storage, read> angles: array<vec4<f32>>; // [position][cos head_vec4s/2, sin head_vec4s/2]
@group(0) @binding(3) var<storage, read_write> qkv: array<vec4<f32>>; // [M][q heads, k heads, v heads]
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<f32>>; // [block][kv head][head_vec4s][block_size]
@group(0) @binding(5) var<storage, read_write> values: array<vec4<f32>>; // [block][kv head][block_size][head_vec4s]

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let half = params.head_vec4s / 2u;
    let turned = (params.num_heads + params.num_kv_heads) * half;
    let copied = params.num_kv_heads * params.head_vec4s;
    let item = id.x;
    if (item >= turned + copied) {
        return;
    }
    let row = id.y;
    let place = rows[row];
    let block = place.z / params.block_size;
    let slot = place.z % params.block_size;
    if (item < turned) {
        let head = item / half;
        let i = item % half;
        let at = row * params.pitch + head * params.head_vec4s + i;
        let cosine = angles[place.y * params.head_vec4s + i];
        let sine = angles[place.y * params.head_vec4s + half + i];
        let a = qkv[at];
        let b = qkv[at + half];
        let turned_a = a * cosine - b * sine;
        let turned_b = b * cosine + a * sine;
        if (head < params.num_heads) {
            qkv[at] = turned_a;
            qkv[at + half] = turned_b;
        } else {
            let first = (block * params.num_kv_heads + head - params.num_heads) * params.head_vec4s;
            keys[(first + i) * params.block_size + slot] = turned_a;
            keys[(first + i + half) * params.block_size + slot] = turned_b;
        }
    } else {
        let head = (item - turned) / params.head_vec4s;
        let i = (item - turned) % params.head_vec4s;
        let v_start = row * params.pitch + (params.num_heads + params.num_kv_heads) * params.head_vec4s;
        let first = (block * params.num_kv_heads + head) * params.block_size;
        values[(first + slot) * params.head_vec4s + i] = qkv[v_start + item - turned];
    }
}
