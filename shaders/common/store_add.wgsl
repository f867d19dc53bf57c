// y += x * W^T (+ bias): the residual stream takes the product in.
fn store(row: u32, column: u32, values: array<f32, TN>) {
    for (var c = 0u; c < TN; c++) { // unroll
        let at = column + c * 8u;
        let i = row * params.y_pitch + params.y_column + at;
        y[i] = y[i] + (values[c] + bias_at(at));
    }
}
