// y[M][N] = x[M][K] * W[N][K]^T for few rows on GPUs. A workgroup is 32 columns x SEGMENTS segments of K: a thread adds up
// one segment of one column for TM rows, the loads of 32 neighbouring columns coalesce, and x is the same for all of them.
//
// Order of summation, the same for every TM and in matmul_tiled.wgsl: along a segment, then over the segments in order.
//
// Bindings: matmul_bindings.wgsl.

var<workgroup> segment_sums: array<f32, SEGMENTS * TM * 32u>; // [SEGMENTS][TM][32]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = thread & 31u;
    let segment = thread >> 5u;
    let group = workgroup.x;
    let row0 = workgroup.y * TM;
    let segment_units = (UNITS + SEGMENTS - 1u) / SEGMENTS;
    let first = min(segment * segment_units, UNITS);
    let end = min(first + segment_units, UNITS);
    var sums = array<f32, TM>();

    for (var unit = first; unit < end; unit++) {
        let line = group * UNITS + unit;
        var scales = vec2<u32>(0u);
        if (HAS_SCALE) {
            scales = weight_scale(line, column);
        }
        for (var block = 0u; block < 2u; block++) { // unroll
            let d = block_scale(scales, block);
            let m = block_minimum(scales, block);
            for (var t = 0u; t < BLOCK_TEXELS; t++) { // unroll
                let texel = weight_texel((line * 2u + block) * BLOCK_TEXELS + t, column);
                for (var j = 0u; j < TEXEL_VEC4S; j++) { // unroll
                    let w = dequantise(texel, j, d, m);
                    let at = unit * 16u + block * 8u + t * TEXEL_VEC4S + j;
                    for (var r = 0u; r < TM; r++) { // unroll
                        sums[r] = dot_add(w, x_at((row0 + r) * params.x_pitch + at), sums[r]);
                    }
                }
            }
        }
    }
    for (var r = 0u; r < TM; r++) { // unroll
        segment_sums[(segment * TM + r) * 32u + column] = sums[r];
    }
    workgroupBarrier();

    // 8 threads a row finish it, 4 columns each.
    if (thread < TM * 8u) {
        let lane = thread & 7u;
        let row = thread >> 3u;
        var values = array<f32, TN>();
        for (var s = 0u; s < SEGMENTS; s++) { // unroll
            for (var c = 0u; c < TN; c++) { // unroll
                values[c] += segment_sums[(s * TM + row) * 32u + c * 8u + lane];
            }
        }
        store(row0 + row, group, lane, values, true);
    }
}
