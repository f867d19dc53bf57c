// The sums over the segments of one row: the first NEAR from the lanes of a subgroup, FAR others through workgroup memory.
var<workgroup> far_sums: array<vec4<f32>, SEGMENTS * 8u>; // [SEGMENTS][8]

fn finish(sums: array<array<f32, TN>, TM>, segment: u32, lane: u32, group: u32, row0: u32) {
    let own = vec4<f32>(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
    var total = own;
    for (var s = 0u; s < NEAR_OTHERS; s++) { // unroll
        total += subgroupShuffleXor(own, (s + 1u) * 8u);
    }
    far_sums[segment * 8u + lane] = own;
    workgroupBarrier();
    if (segment == 0u) {
        for (var s = 0u; s < FAR; s++) { // unroll
            total += far_sums[(NEAR + s) * 8u + lane];
        }
        store(row0, group, lane, array<f32, TN>(total.x, total.y, total.z, total.w), true);
    }
}
