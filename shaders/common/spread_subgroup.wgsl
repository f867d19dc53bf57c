// x of a block from the lanes that hold it, one vec4 each: see lanes.wgsl.
fn spread(own: vec4<f32>, base: u32, j: u32) -> vec4<f32> {
    return spread_lane(own, j);
}

// The sum of a block of 32 of x, from the lane sums in lane order.
fn block_sum(own: vec4<f32>, base: u32) -> f32 {
    return sum_lanes((own.x + own.y) + (own.z + own.w));
}
