// Block scales in a buffer, two words a unit of 64 weights.
@group(0) @binding(3) var<storage, read> weight_scales: array<vec2<u32>>; // [lines][32]

fn weight_scale(line: u32, column: u32) -> vec2<u32> {
    return weight_scales[(line << 5u) + column];
}
