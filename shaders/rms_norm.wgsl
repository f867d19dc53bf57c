// y = x / sqrt(mean(x^2) + eps) * gamma (1910.07467). One row a workgroup. With GATHER, row i of y comes from row
// sample_rows[i] of x: the output head is computed for sampled rows only.
//
// Width and gather are constants: lavapipe compiles a kernel anew for every value of a uniform that bounds a loop or branch.
struct Params {
    x_pitch: u32, // vec4s a row of x
    y_pitch: u32, // vec4s a row of y
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch]
@group(0) @binding(2) var<storage, read> gamma: array<vec4<f32>>; // [width_vec4s]
@group(0) @binding(3) var<storage, read> sample_rows: array<u32>; // [S]
// Binding 4 is y, [M or S][y_pitch]: see y_*.wgsl.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = workgroup.x;
    var source = row;
    if (GATHER == 1u) {
        source = sample_rows[row];
    }
    let source_start = source * params.x_pitch;
    var squares = 0.0;
    for (var i = thread; i < WIDTH_VEC4S; i += WORKGROUP) {
        let v = x[source_start + i];
        squares += dot(v, v);
    }
    let mean = sum_all(squares, thread) / f32(WIDTH_VEC4S * 4u);
    let scale = inverseSqrt(mean + params.eps);
    for (var i = thread; i < WIDTH_VEC4S; i += WORKGROUP) {
        put_y(row * params.y_pitch + i, x[source_start + i] * scale * gamma[i]);
    }
}
