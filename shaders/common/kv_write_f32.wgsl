fn put_key(row: u32, c: u32, slot: u32, cell: KvCell) {
    let at = key_at(row, c, slot);
    put_key_texel(at, bitcast<vec4<u32>>(cell.a));
    put_key_texel(at + HEAD_CELLS * BLOCK_SIZE, bitcast<vec4<u32>>(cell.b));
}

fn put_value(row: u32, slot: u32, c: u32, cell: KvCell) {
    let at = value_at(row, slot, c);
    put_value_texel(at, bitcast<vec4<u32>>(cell.a));
    put_value_texel(at + HEAD_CELLS, bitcast<vec4<u32>>(cell.b));
}
