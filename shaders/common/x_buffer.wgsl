// What a product is of, at home in a buffer.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch]

fn x_at(i: u32) -> vec4<f32> {
    return x[i];
}

fn x_number(i: u32, c: u32) -> f32 {
    return x[i][c];
}
