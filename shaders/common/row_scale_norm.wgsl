// x is a row times gamma: the norm's other half is to divide by the root of the row's mean square.
@group(0) @binding(6) var<storage, read> squares: array<vec4<f32>>; // [M][SQUARES / 4]

fn row_scale(row: u32, lane: u32) -> f32 {
    var own = 0.0;
    for (var first = 0u; first < SQUARES / 4u; first += 8u) {
        let i = min(first + lane, SQUARES / 4u - 1u);
        let four = squares[row * (SQUARES / 4u) + i];
        own += select(0.0, (four.x + four.y) + (four.z + four.w), first + lane == i);
    }
    return inverseSqrt(sum_slice(own) / f32(NORM_WIDTH) + params.eps);
}
