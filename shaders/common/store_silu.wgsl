// y = silu(gate) * up (1606.08415): gate and up alternate, so a thread holds two pairs.
@group(0) @binding(5) var<storage, read_write> y: array<vec2<f32>>; // [M][y_pitch / 2]

fn store(row: u32, group: u32, lane: u32, values: array<f32, TN>, counts: bool) {
    let i = group * 8u + lane;
    if (counts) {
        y[(row * params.y_pitch + params.y_column) / 2u + i] = gated(with_bias(values, i));
    }
}
