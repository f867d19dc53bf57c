// What a product is of, in 8 bits, at home in a buffer: see quantise.wgsl.
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>; // [M][x_pitch]

fn x_words(i: u32) -> vec4<u32> {
    return x[i];
}
