// Weights at home in a texture, 2,048 texels wide: 64 lines of 32 columns side by side. CPU drivers turn such a read into
// one vector gather, where a storage buffer costs them a branch per lane and word.
@group(0) @binding(2) var weight_data: texture_storage_2d<rgba32uint, read>; // [lines / 64][64 * 32]

fn weight_texel(line: u32, column: u32) -> vec4<u32> {
    return textureLoad(weight_data, vec2<u32>(((line & 63u) << 5u) + column, line >> 6u));
}
