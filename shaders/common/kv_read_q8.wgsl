// A byte at the upper end of a word counts 2^24 times: the scale makes up for it, and a shift is saved.
const UPPER: f32 = 5.9604644775390625e-8;

fn bytes(word: u32) -> vec4<f32> {
    let shifted = vec4<u32>(word << 24u, (word << 16u) & 0xff000000u, (word << 8u) & 0xff000000u, word & 0xff000000u);
    return vec4<f32>(bitcast<vec4<i32>>(shifted));
}

fn key_cell(row: u32, c: u32, slot: u32) -> KvCell {
    let texel = key_texel(key_at(row, c, slot));
    return KvCell(bytes(texel.x), bytes(texel.y));
}

fn value_cell(row: u32, slot: u32, c: u32) -> KvCell {
    let texel = value_texel(value_at(row, slot, c));
    return KvCell(bytes(texel.x), bytes(texel.y));
}

// vec4 i of a value: where threads are more than cells.
fn value_vec4(row: u32, slot: u32, i: u32) -> vec4<f32> {
    let texel = value_texel(value_at(row, slot, i % HEAD_CELLS));
    return bytes(select(texel.y, texel.x, i < HEAD_CELLS));
}

// What the numbers of a key's and of a value's cells are to be multiplied by.
fn kv_scales(row: u32, slot: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(key_texel(key_at(row, HEAD_CELLS, slot))) * UPPER;
}
