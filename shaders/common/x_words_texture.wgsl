// What a product is of, in 8 bits, at home in a texture: see quantise.wgsl, and data_texture.wgsl for the place.
@group(0) @binding(1) var x: texture_storage_2d<rgba32uint, read>; // [M][x_pitch]

fn x_words(i: u32) -> vec4<u32> {
    return textureLoad(x, vec2<u32>(i & 2047u, i >> 11u));
}
