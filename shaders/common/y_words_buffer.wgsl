// Rows in 8 bits that a product will read, at home in a buffer: see quantise.wgsl.
@group(0) @binding(Y_BINDING) var<storage, read_write> y: array<vec4<u32>>; // [M][y_pitch]

fn put_words(i: u32, words: vec4<u32>) {
    y[i] = words;
}
