// Rotary embedding (2104.09864) of q, in place, and of k; k and v go into the paged cache in 8 bits: see rope_kv_write.wgsl. A
// thread turns one vec4 of q against its partner, or turns a whole head of k and writes it and its v: the scale wants all of it.
struct Params {
    pitch: u32, // vec4s a row of qkv
}

@group(0) @binding(0) var<uniform> params: Params;
// Rows and angles: see rope.wgsl.
@group(0) @binding(3) var<storage, read_write> qkv: array<vec4<f32>>; // [M][q heads, k heads, v heads]
// The KV cache follows: see kv_write_*.wgsl.

// Cell i of what starts at `start`, as it is.
fn copied(start: u32, i: u32) -> KvCell {
    return KvCell(qkv[start + i], qkv[start + HEAD_CELLS + i]);
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let item = id.x;
    let row = id.y;
    let place = rows[row];
    let first = row * params.pitch;
    if (item < NUM_HEADS * HEAD_CELLS) {
        let start = first + item / HEAD_CELLS * 2u * HEAD_CELLS;
        let i = item % HEAD_CELLS;
        let q = turned(copied(start, i), i, place.y);
        qkv[start + i] = q.a;
        qkv[start + HEAD_CELLS + i] = q.b;
    } else if (item < NUM_HEADS * HEAD_CELLS + NUM_KV_HEADS) {
        let head = item - NUM_HEADS * HEAD_CELLS;
        let k_start = first + (NUM_HEADS + head) * 2u * HEAD_CELLS;
        let v_start = k_start + NUM_KV_HEADS * 2u * HEAD_CELLS;
        var tops = vec2<f32>();
        for (var i = 0u; i < HEAD_CELLS; i++) {
            tops = max(tops, vec2<f32>(top_of(turned(copied(k_start, i), i, place.y)), top_of(copied(v_start, i))));
        }
        let cache_row = place.z / BLOCK_SIZE * NUM_KV_HEADS + head;
        let slot = place.z % BLOCK_SIZE;
        put_scales(cache_row, slot, tops);
        let inverses = vec2<f32>(inverse_of(tops.x), inverse_of(tops.y));
        for (var i = 0u; i < HEAD_CELLS; i++) {
            put_key(cache_row, i, slot, turned(copied(k_start, i), i, place.y), inverses.x);
            put_value(cache_row, slot, i, copied(v_start, i), inverses.y);
        }
    }
}
