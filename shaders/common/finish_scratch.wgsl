// The sums over the segments through workgroup memory: the 8 threads of a segment finish a row.
var<workgroup> segment_sums: array<vec4<f32>, SEGMENTS * TM * 8u>; // [SEGMENTS][TM][8]

fn finish(sums: array<array<f32, TN>, TM>, segment: u32, lane: u32, group: u32, row0: u32) {
    for (var r = 0u; r < TM; r++) { // unroll
        segment_sums[(segment * TM + r) * 8u + lane] = vec4<f32>(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    }
    workgroupBarrier();
    if (segment < TM) {
        var total = vec4<f32>();
        for (var s = 0u; s < SEGMENTS; s++) { // unroll
            total += segment_sums[(s * TM + segment) * 8u + lane];
        }
        store(row0 + segment, group, lane, array<f32, TN>(total.x, total.y, total.z, total.w), true);
    }
}
