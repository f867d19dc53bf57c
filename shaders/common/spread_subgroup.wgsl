// One vec4 of x from another lane of the same 8: the lanes hold a block of 32 between them.
fn spread(own: vec4<f32>, base: u32, j: u32) -> vec4<f32> {
    // The index must be a constant, and callers pass one: after inlining a single case is left.
    switch j {
        case 0u: { return subgroupBroadcast(own, 0u); }
        case 1u: { return subgroupBroadcast(own, 1u); }
        case 2u: { return subgroupBroadcast(own, 2u); }
        case 3u: { return subgroupBroadcast(own, 3u); }
        case 4u: { return subgroupBroadcast(own, 4u); }
        case 5u: { return subgroupBroadcast(own, 5u); }
        case 6u: { return subgroupBroadcast(own, 6u); }
        default: { return subgroupBroadcast(own, 7u); }
    }
}

// The sum of a block of 32 of x, from the lane sums in lane order.
fn block_sum(own: vec4<f32>, base: u32) -> f32 {
    let part = (own.x + own.y) + (own.z + own.w);
    return ((subgroupBroadcast(part, 0u) + subgroupBroadcast(part, 1u))
        + (subgroupBroadcast(part, 2u) + subgroupBroadcast(part, 3u)))
        + ((subgroupBroadcast(part, 4u) + subgroupBroadcast(part, 5u))
        + (subgroupBroadcast(part, 6u) + subgroupBroadcast(part, 7u)));
}
