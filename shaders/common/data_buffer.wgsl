// Weights at home in a buffer: 32 columns of a line are 512 neighbouring bytes, so a subgroup's loads coalesce.
@group(0) @binding(2) var<storage, read> weight_data: array<vec4<u32>>; // [lines][32]

fn weight_texel(line: u32, column: u32) -> vec4<u32> {
    return weight_data[(line << 5u) + column];
}
