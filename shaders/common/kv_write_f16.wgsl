// The largest half stands for whatever is larger: infinity would make no number of everything behind it.
fn halves(four: vec4<f32>) -> vec2<u32> {
    let kept = clamp(four, vec4<f32>(-65504.0), vec4<f32>(65504.0));
    return vec2<u32>(pack2x16float(kept.xy), pack2x16float(kept.zw));
}

fn put_key(row: u32, c: u32, slot: u32, cell: KvCell) {
    put_key_texel(key_at(row, c, slot), vec4<u32>(halves(cell.a), halves(cell.b)));
}

fn put_value(row: u32, slot: u32, c: u32, cell: KvCell) {
    put_value_texel(value_at(row, slot, c), vec4<u32>(halves(cell.a), halves(cell.b)));
}
