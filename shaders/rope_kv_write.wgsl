// Rotary embedding (2104.09864) of q, in place, and of k; k and v go into the paged cache. Dimension d of a head turns
// together with d + head_dim/2. A thread turns one vec4 against its partner, or copies such a pair of v.
//
// The sizes are constants: CPUs divide slowly.
struct Params {
    pitch: u32, // vec4s a row of qkv
}

@group(0) @binding(0) var<uniform> params: Params;
// Rows and angles: see rope.wgsl.
@group(0) @binding(3) var<storage, read_write> qkv: array<vec4<f32>>; // [M][q heads, k heads, v heads]
// The KV cache follows: see kv_write_*.wgsl.

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let item = id.x;
    if (item >= (NUM_HEADS + 2u * NUM_KV_HEADS) * HEAD_CELLS) {
        return;
    }
    let row = id.y;
    let place = rows[row];
    let slot = place.z % BLOCK_SIZE;
    let head = item / HEAD_CELLS;
    let i = item % HEAD_CELLS;
    let at = row * params.pitch + head * 2u * HEAD_CELLS + i;
    let a = qkv[at];
    let b = qkv[at + HEAD_CELLS];
    let cache_row = place.z / BLOCK_SIZE * NUM_KV_HEADS + (head - NUM_HEADS) % NUM_KV_HEADS;
    if (head < NUM_HEADS + NUM_KV_HEADS) {
        let cell = turned(KvCell(a, b), i, place.y);
        if (head < NUM_HEADS) {
            qkv[at] = cell.a;
            qkv[at + HEAD_CELLS] = cell.b;
        } else {
            put_key(cache_row, i, slot, cell);
        }
    } else {
        put_value(cache_row, slot, i, KvCell(a, b));
    }
}
