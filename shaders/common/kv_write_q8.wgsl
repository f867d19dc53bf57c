// The largest number of a head becomes 127.
fn inverse_of(top: f32) -> f32 {
    return select(0.0, 127.0 / max(top, 1.0e-30), top > 1.0e-30);
}

fn as_bytes(four: vec4<f32>, inverse: f32) -> u32 {
    let q = bitcast<vec4<u32>>(vec4<i32>(round(four * inverse))) & vec4<u32>(255u);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}

fn put_key(row: u32, c: u32, slot: u32, cell: KvCell, inverse: f32) {
    put_key_texel(key_at(row, c, slot), vec2<u32>(as_bytes(cell.a, inverse), as_bytes(cell.b, inverse)));
}

fn put_value(row: u32, slot: u32, c: u32, cell: KvCell, inverse: f32) {
    put_value_texel(value_at(row, slot, c), vec2<u32>(as_bytes(cell.a, inverse), as_bytes(cell.b, inverse)));
}

// The largest numbers of a key and of its value.
fn put_scales(row: u32, slot: u32, tops: vec2<f32>) {
    put_key_texel(key_at(row, HEAD_CELLS, slot), bitcast<vec2<u32>>(tops / 127.0));
}

fn top_of(cell: KvCell) -> f32 {
    let higher = max(abs(cell.a), abs(cell.b));
    return max(max(higher.x, higher.y), max(higher.z, higher.w));
}
