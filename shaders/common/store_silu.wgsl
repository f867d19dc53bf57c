// y = silu(gate) * up (1606.08415): gate and up alternate every 8 columns, so a thread holds both of each pair.
fn store(row: u32, column: u32, values: array<f32, TN>) {
    let group = column >> 5u;
    let lane = column & 7u;
    for (var pair = 0u; pair < TN / 2u; pair++) { // unroll
        let gate = values[pair * 2u] + bias_at(column + pair * 16u);
        let up = values[pair * 2u + 1u] + bias_at(column + pair * 16u + 8u);
        let at = group * 16u + pair * 8u + lane;
        y[row * params.y_pitch + params.y_column + at] = gate / (1.0 + exp(-gate)) * up;
    }
}
