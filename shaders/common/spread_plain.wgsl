// Without subgroups every lane reads x itself: the address is the same for all, so the hardware reads it once.
fn spread(own: vec4<f32>, base: u32, j: u32) -> vec4<f32> {
    return x_at(base + j);
}

// The sum of a block of 32 of x.
fn block_sum(own: vec4<f32>, base: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < 8u; j++) { // unroll
        sum += x_at(base + j);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}
