fn key_cell(row: u32, c: u32, slot: u32) -> KvCell {
    let at = key_at(row, c, slot);
    return KvCell(bitcast<vec4<f32>>(key_texel(at)), bitcast<vec4<f32>>(key_texel(at + HEAD_CELLS * BLOCK_SIZE)));
}

fn value_cell(row: u32, slot: u32, c: u32) -> KvCell {
    let at = value_at(row, slot, c);
    return KvCell(bitcast<vec4<f32>>(value_texel(at)), bitcast<vec4<f32>>(value_texel(at + HEAD_CELLS)));
}

// vec4 i of a value: where threads are more than cells.
fn value_vec4(row: u32, slot: u32, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(value_texel(value_at(row, slot, i)));
}

// What the numbers of a key's and of a value's cells are to be multiplied by.
fn kv_scales(row: u32, slot: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
