// y = silu(gate) * up, for the next product to read: gate and up alternate, so a thread holds two pairs. y: see y_*.wgsl.
fn store(row: u32, group: u32, lane: u32, values: array<f32, TN>, counts: bool) {
    let i = group * 8u + lane;
    put_vec2(row * params.y_pitch / 4u, params.y_column / 2u + i, gated(with_bias(values, i)), counts);
}
