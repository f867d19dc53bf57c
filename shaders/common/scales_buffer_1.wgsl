// Block scales in a buffer, one word a unit of 64 weights.
@group(0) @binding(3) var<storage, read> weight_scales: array<u32>; // [lines][32]

fn weight_scale(line: u32, column: u32) -> vec2<u32> {
    return vec2<u32>(weight_scales[(line << 5u) + column], 0u);
}
