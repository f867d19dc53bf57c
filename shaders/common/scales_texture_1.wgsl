// Block scales in a texture like the weights', one word a unit of 64 weights.
@group(0) @binding(3) var weight_scales: texture_storage_2d<r32uint, read>; // [lines / 64][64 * 32]

fn weight_scale(line: u32, column: u32) -> vec2<u32> {
    return vec2<u32>(textureLoad(weight_scales, vec2<u32>(((line & 63u) << 5u) + column, line >> 6u)).x, 0u);
}
