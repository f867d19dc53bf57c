// The residual stream takes x * W^T (+ bias) in, and what the next norm (1910.07467) needs of it is written: y = residual * gamma,
// and each group's sum of squares. Whoever multiplies y divides by the root of their mean: see row_scale_norm.wgsl.
// Binding 8 is y: see y_*.wgsl and put_*.wgsl.
@group(0) @binding(5) var<storage, read_write> residual: array<vec4<f32>>; // [M][y_pitch / 4]
@group(0) @binding(6) var<storage, read> gamma: array<vec4<f32>>; // [N / 4]
@group(0) @binding(7) var<storage, read_write> squares: array<f32>; // [M][SQUARES]

fn store(row: u32, group: u32, lane: u32, values: array<f32, TN>, counts: bool) {
    let i = group * 8u + lane;
    let at = row * params.y_pitch / 4u + i;
    let value = residual[at] + with_bias(values, i);
    let sum = sum_slice(dot(value, value));
    if (counts) {
        residual[at] = value;
    }
    if (counts && lane == 0u) {
        squares[row * SQUARES + group] = sum;
    }
    put_vec4(row * params.z_pitch, i, value * gamma[i], counts);
}
