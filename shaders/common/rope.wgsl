// Rotary embedding (2104.09864): dimension d of a head turns together with d + head_dim/2.
@group(0) @binding(ROWS_BINDING) var<storage, read> rows: array<vec4<u32>>; // [M]: token, position, slot, sequence
@group(0) @binding(ANGLES_BINDING) var<storage, read> angles: array<vec4<f32>>; // [position][cos HEAD_CELLS, sin HEAD_CELLS]

// Cell i of a head, turned to `position`.
fn turned(cell: KvCell, i: u32, position: u32) -> KvCell {
    let cosine = angles[position * 2u * HEAD_CELLS + i];
    let sine = angles[position * 2u * HEAD_CELLS + HEAD_CELLS + i];
    let a = cell.a;
    let b = cell.b;
    let turned_a = a * cosine - b * sine;
    let turned_b = b * cosine + a * sine;
    return KvCell(turned_a, turned_b);
}
