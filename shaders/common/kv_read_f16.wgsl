fn four(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn key_cell(row: u32, c: u32, slot: u32) -> KvCell {
    let texel = key_texel(key_at(row, c, slot));
    return KvCell(four(texel.xy), four(texel.zw));
}

fn value_cell(row: u32, slot: u32, c: u32) -> KvCell {
    let texel = value_texel(value_at(row, slot, c));
    return KvCell(four(texel.xy), four(texel.zw));
}

// vec4 i of a value: where threads are more than cells.
fn value_vec4(row: u32, slot: u32, i: u32) -> vec4<f32> {
    let texel = value_texel(value_at(row, slot, i % HEAD_CELLS));
    return four(select(texel.zw, texel.xy, i < HEAD_CELLS));
}

// What the numbers of a key's and of a value's cells are to be multiplied by.
fn kv_scales(row: u32, slot: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
