// Rotary embedding (2104.09864) of q, in place, and of k; k and v go into the paged cache. Dimension d of a head turns
// together with d + head_dim/2. A thread turns one vec4 against its partner, or copies one vec4 of v.
//
// The sizes are constants: CPUs divide slowly.
struct Params {
    pitch: u32, // vec4s a row of qkv
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>; // [M]: token, position, slot, sequence
@group(0) @binding(2) var<storage, read> angles: array<vec4<f32>>; // [position][cos HEAD_VEC4S/2, sin HEAD_VEC4S/2]
@group(0) @binding(3) var<storage, read_write> qkv: array<vec4<f32>>; // [M][q heads, k heads, v heads]
// Bindings 4 and 5 are the KV cache: see kv_write_*.wgsl.

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let half = HEAD_VEC4S / 2u;
    let turned = (NUM_HEADS + NUM_KV_HEADS) * half;
    let copied = NUM_KV_HEADS * HEAD_VEC4S;
    let item = id.x;
    if (item >= turned + copied) {
        return;
    }
    let row = id.y;
    let place = rows[row];
    let block = place.z / BLOCK_SIZE;
    let slot = place.z % BLOCK_SIZE;
    if (item < turned) {
        let head = item / half;
        let i = item % half;
        let at = row * params.pitch + head * HEAD_VEC4S + i;
        let cosine = angles[place.y * HEAD_VEC4S + i];
        let sine = angles[place.y * HEAD_VEC4S + half + i];
        let a = qkv[at];
        let b = qkv[at + half];
        let turned_a = a * cosine - b * sine;
        let turned_b = b * cosine + a * sine;
        if (head < NUM_HEADS) {
            qkv[at] = turned_a;
            qkv[at + half] = turned_b;
        } else {
            let first = (block * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_VEC4S;
            put_key((first + i) * BLOCK_SIZE + slot, turned_a);
            put_key((first + i + half) * BLOCK_SIZE + slot, turned_b);
        }
    } else {
        let head = (item - turned) / HEAD_VEC4S;
        let i = (item - turned) % HEAD_VEC4S;
        let v_start = row * params.pitch + (NUM_HEADS + NUM_KV_HEADS) * HEAD_VEC4S;
        let first = (block * NUM_KV_HEADS + head) * BLOCK_SIZE;
        put_value((first + slot) * HEAD_VEC4S + i, qkv[v_start + item - turned]);
    }
}
