// The norm (1910.07467) as products take it: y = x * gamma, and the sums of squares of 32 numbers each. A row a workgroup, of 8
// lanes. It begins the first layer; after that the products before a norm do this themselves: see store_add_norm.wgsl.
struct Params {
    x_pitch: u32, // vec4s a row of x
    y_pitch: u32, // texels a row of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch], zero behind the width
@group(0) @binding(2) var<storage, read> gamma: array<vec4<f32>>; // [width / 4]
@group(0) @binding(3) var<storage, read_write> squares: array<f32>; // [M][SQUARES]
// Binding 4 is y, [M][y_pitch]: see y_*.wgsl and put_*.wgsl.

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x;
    for (var block = 0u; block < BLOCKS; block++) {
        let i = block * 8u + lane;
        let value = x[row * params.x_pitch + i];
        let sum = sum_slice(dot(value, value));
        if (lane == 0u) {
            squares[row * SQUARES + block] = sum;
        }
        put_vec4(row * params.y_pitch, i, value * gamma[i], true);
    }
}
