// y += x * W^T (+ bias): the residual stream takes the product in. A thread's four columns are neighbours.
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>; // [M][y_pitch / 4]

fn store(row: u32, group: u32, lane: u32, values: array<f32, TN>, counts: bool) {
    let i = group * 8u + lane;
    let at = (row * params.y_pitch + params.y_column) / 4u + i;
    if (counts) {
        y[at] = y[at] + with_bias(values, i);
    }
}
