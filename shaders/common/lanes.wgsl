// The 8 lanes of a slice hand numbers round: see broadcast.wgsl.
fn spread_lane(own: vec4<f32>, j: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(spread_words(bitcast<vec4<u32>>(own), j));
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
