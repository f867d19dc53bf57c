// The 8 lanes of a slice hand values round. Indices must be constants, and callers pass them: after inlining a single case
// is left.
fn spread_lane(own: vec4<f32>, j: u32) -> vec4<f32> {
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

fn spread_one(own: f32, j: u32) -> f32 {
    return spread_lane(vec4<f32>(own), j).x;
}

// The sum over 8 lanes, in a fixed order.
fn sum_lanes(own: f32) -> f32 {
    return ((subgroupBroadcast(own, 0u) + subgroupBroadcast(own, 1u))
        + (subgroupBroadcast(own, 2u) + subgroupBroadcast(own, 3u)))
        + ((subgroupBroadcast(own, 4u) + subgroupBroadcast(own, 5u))
        + (subgroupBroadcast(own, 6u) + subgroupBroadcast(own, 7u)));
}

fn max_lanes(own: f32) -> f32 {
    return max(
        max(max(subgroupBroadcast(own, 0u), subgroupBroadcast(own, 1u)),
            max(subgroupBroadcast(own, 2u), subgroupBroadcast(own, 3u))),
        max(max(subgroupBroadcast(own, 4u), subgroupBroadcast(own, 5u)),
            max(subgroupBroadcast(own, 6u), subgroupBroadcast(own, 7u))));
}
