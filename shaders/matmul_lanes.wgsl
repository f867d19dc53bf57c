// y[M][N] = x[M][K] * W[N][K]^T for CPU drivers: lanes are columns, a thread keeps TM rows x TN columns in registers, and
// there is no barrier. The 8 lanes of a slice hold a block of x between them and hand it round.
//
// Columns come in groups of 32: thread (lane l, tile column c) owns column 32*group + 4*l + c. K comes in units of 64: two
// blocks of 32 weights. Order of summation, the same for every TM: blocks in order; in a block sum(q*x) in order, then d and m.
//
// Bindings: matmul_bindings.wgsl.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 7u;
    let wanted = workgroup.x * (WORKGROUP / 8u) + (thread >> 3u);
    // A slice beyond the last group computes it again and stores nothing: every lane stays in step.
    let group = min(wanted, params.num_groups - 1u);
    let row0 = workgroup.y * TM;
    var sums = array<array<f32, TN>, TM>();

    for (var unit = 0u; unit < UNITS; unit++) {
        let line = group * UNITS + unit;
        var scales = array<vec2<u32>, TN>();
        if (HAS_SCALE) {
            for (var c = 0u; c < TN; c++) { // unroll
                scales[c] = weight_scale(line, c * 8u + lane);
            }
        }
        for (var block = 0u; block < 2u; block++) { // unroll
            var own = array<vec4<f32>, TM>();
            for (var m = 0u; m < TM; m++) { // unroll
                own[m] = x_at((row0 + m) * params.x_pitch + unit * 16u + block * 8u + lane);
            }
            var products = array<array<f32, TN>, TM>();
            for (var t = 0u; t < BLOCK_TEXELS; t++) { // unroll
                var texels = array<vec4<u32>, TN>();
                for (var c = 0u; c < TN; c++) { // unroll
                    texels[c] = weight_texel((line * 2u + block) * BLOCK_TEXELS + t, c * 8u + lane);
                }
                for (var j = 0u; j < TEXEL_VEC4S; j++) { // unroll
                    var weights = array<vec4<f32>, TN>();
                    for (var c = 0u; c < TN; c++) { // unroll
                        weights[c] = unpack4(texels[c], j);
                    }
                    for (var m = 0u; m < TM; m++) { // unroll
                        let base = (row0 + m) * params.x_pitch + unit * 16u + block * 8u;
                        let x4 = spread(own[m], base, t * TEXEL_VEC4S + j);
                        for (var c = 0u; c < TN; c++) { // unroll
                            products[m][c] = dot_add(weights[c], x4, products[m][c]);
                        }
                    }
                }
            }
            for (var m = 0u; m < TM; m++) { // unroll
                var x_sum = 0.0;
                if (HAS_MINIMUM) {
                    let base = (row0 + m) * params.x_pitch + unit * 16u + block * 8u;
                    x_sum = block_sum(own[m], base);
                }
                for (var c = 0u; c < TN; c++) { // unroll
                    if (HAS_SCALE) {
                        sums[m][c] += block_scale(scales[c], block) * products[m][c];
                    } else {
                        sums[m][c] += products[m][c];
                    }
                    if (HAS_MINIMUM) {
                        sums[m][c] += block_minimum(scales[c], block) * x_sum;
                    }
                }
            }
        }
    }
    for (var m = 0u; m < TM; m++) { // unroll
        let scale = row_scale(row0 + m, lane);
        for (var c = 0u; c < TN; c++) { // unroll
            sums[m][c] *= scale;
        }
        store(row0 + m, group, lane, sums[m], wanted < params.num_groups);
    }
}

// Four more products, in the order of K. Not by fma(): CPU drivers have none that is fast, and SwiftShader calls a function.
fn dot_add(w: vec4<f32>, x4: vec4<f32>, sum: f32) -> f32 {
    return (((sum + w.x * x4.x) + w.y * x4.y) + w.z * x4.z) + w.w * x4.w;
}
