// The KV cache by cells: vec4s c and c + HEAD_CELLS of a head. A row is a head of a block.
struct KvCell {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn key_cell(row: u32, c: u32, slot: u32) -> KvCell {
    let at = (row * HEAD_VEC4S + c) * BLOCK_SIZE + slot;
    return KvCell(key_at(at), key_at(at + HEAD_CELLS * BLOCK_SIZE));
}

fn value_vec4(row: u32, slot: u32, i: u32) -> vec4<f32> {
    return value_at((row * BLOCK_SIZE + slot) * HEAD_VEC4S + i);
}

// What the numbers of a key and of a value are to be multiplied by.
fn kv_scales(row: u32, slot: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
