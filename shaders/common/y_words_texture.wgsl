// Rows in 8 bits that a product will read, at home in a texture: see x_words_texture.wgsl.
@group(0) @binding(Y_BINDING) var y: texture_storage_2d<rgba32uint, write>; // [M][y_pitch]

fn put_words(i: u32, words: vec4<u32>) {
    textureStore(y, vec2<u32>(i & 2047u, i >> 11u), words);
}
