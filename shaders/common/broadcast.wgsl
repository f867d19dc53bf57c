// What lane j of 8 holds, bit for bit. Indices must be constants, and callers pass them: after inlining a single case is left.
fn spread_words(own: vec4<u32>, j: u32) -> vec4<u32> {
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
