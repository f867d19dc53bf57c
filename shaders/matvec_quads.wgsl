// y[M][N] = x[M][K] * W[N][K]^T for few rows on GPUs. A workgroup is 8 lanes of four columns x SEGMENTS segments of K: a thread
// adds up one segment of its columns for TM rows, so that four columns share what is read of x. A load of a subgroup is runs
// of 128 bytes, one for each of its segments.
//
// Order of summation, that of matvec_split.wgsl: along a segment, then over the segments in order. finish: see finish_*.wgsl.
//
// Bindings: matmul_bindings.wgsl.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 7u;
    let segment = thread >> 3u;
    let group = workgroup.x;
    let row0 = workgroup.y * TM;
    let segment_units = (UNITS + SEGMENTS - 1u) / SEGMENTS;
    let first = min(segment * segment_units, UNITS);
    let end = min(first + segment_units, UNITS);
    var sums = array<array<f32, TN>, TM>();

    for (var unit = first; unit < end; unit++) {
        let line = group * UNITS + unit;
        var scales = array<vec2<u32>, TN>();
        if (HAS_SCALE) {
            for (var c = 0u; c < TN; c++) { // unroll
                scales[c] = weight_scale(line, c * 8u + lane);
            }
        }
        for (var block = 0u; block < 2u; block++) {
            let odd = block == 1u;
            var d = array<f32, TN>();
            var m = array<f32, TN>();
            for (var c = 0u; c < TN; c++) { // unroll
                d[c] = select(block_scale(scales[c], 0u), block_scale(scales[c], 1u), odd);
                m[c] = select(block_minimum(scales[c], 0u), block_minimum(scales[c], 1u), odd);
            }
            for (var t = 0u; t < BLOCK_TEXELS; t++) { // unroll
                var texels = array<vec4<u32>, TN>();
                for (var c = 0u; c < TN; c++) { // unroll
                    texels[c] = weight_texel((line * 2u + block) * BLOCK_TEXELS + t, c * 8u + lane);
                }
                for (var j = 0u; j < TEXEL_VEC4S; j++) { // unroll
                    var w = array<vec4<f32>, TN>();
                    for (var c = 0u; c < TN; c++) { // unroll
                        w[c] = dequantise(texels[c], j, d[c], m[c]);
                    }
                    let at = unit * 16u + block * 8u + t * TEXEL_VEC4S + j;
                    for (var r = 0u; r < TM; r++) { // unroll
                        let x4 = x_at((row0 + r) * params.x_pitch + at);
                        for (var c = 0u; c < TN; c++) { // unroll
                            sums[r][c] = dot_add(w[c], x4, sums[r][c]);
                        }
                    }
                }
            }
        }
    }
    finish(sums, segment, lane, group, row0);
}
