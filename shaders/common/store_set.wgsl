// y = x * W^T (+ bias).
fn store(row: u32, column: u32, values: array<f32, TN>) {
    for (var c = 0u; c < TN; c++) { // unroll
        let at = column + c * 8u;
        y[row * params.y_pitch + params.y_column + at] = values[c] + bias_at(at);
    }
}
