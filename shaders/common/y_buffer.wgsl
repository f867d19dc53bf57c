// Rows that a product will read, at home in a buffer.
@group(0) @binding(Y_BINDING) var<storage, read_write> y: array<vec4<f32>>; // [M][y_pitch]

fn put_y(i: u32, value: vec4<f32>) {
    y[i] = value;
}
