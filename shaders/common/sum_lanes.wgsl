// The sum over a workgroup of 8 lanes, without a barrier: see lanes.wgsl.
fn sum_all(value: f32, thread: u32) -> f32 {
    return sum_lanes(value);
}
