// y = x * W^T (+ bias) of q, k and v, each put to its use: what rope_kv_write.wgsl does with a product that was stored before. The
// head's columns come in another order (rope_kv_write.rs, turned_row): what lanes l and l + 4 of a group hold turns together.
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>; // [M][y_pitch / 4]: q
// Rows and angles: see rope.wgsl.
// The KV cache follows: see kv_write_*.wgsl.

fn store(row: u32, group: u32, lane: u32, values: array<f32, TN>, counts: bool) {
    let own = with_bias(values, group * 8u + lane);
    let other = vec4<f32>(
        subgroupShuffleXor(own.x, 4u), subgroupShuffleXor(own.y, 4u),
        subgroupShuffleXor(own.z, 4u), subgroupShuffleXor(own.w, 4u),
    );
    let place = rows[row];
    if (!counts || place.z == NOWHERE) {
        return;
    }
    let is_first = lane < 4u;
    let a = select(other, own, is_first);
    let b = select(own, other, is_first);
    let whole = params.y_column / 32u + group;
    let head = whole / HEAD_GROUPS;
    let i = whole % HEAD_GROUPS * 4u + (lane & 3u);
    let slot = place.z % BLOCK_SIZE;
    let cache_row = place.z / BLOCK_SIZE * NUM_KV_HEADS + (head - NUM_HEADS) % NUM_KV_HEADS;
    if (head < NUM_HEADS + NUM_KV_HEADS) {
        let cell = turned(KvCell(a, b), i, place.y);
        if (head < NUM_HEADS) {
            let at = row * params.y_pitch / 4u + head * 2u * HEAD_CELLS + i;
            if (is_first) {
                y[at] = cell.a;
            } else {
                y[at + HEAD_CELLS] = cell.b;
            }
        } else if (is_first) {
            put_key(cache_row, i, slot, cell);
        }
    } else if (is_first) {
        put_value(cache_row, slot, i, KvCell(a, b));
    }
}
