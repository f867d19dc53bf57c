// y[M][N] = x[M][K] * W[N][K]^T for CPU drivers, x in 8 bits (see quantise.wgsl) and W in 4: two weights stand 16 bits apart in
// a word of W, two numbers of x in a word of x, and one 32-bit multiplication has the sum of both products in its upper half.
// Exact: 16 products of at most 15 * 127 stay below 2^15, and so does what the lower half gathers.
//
// Lanes, tiles and the order of summation are matmul_lanes.wgsl's: blocks in order; in a block its halves, then the minimum.
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
    var extras = array<vec4<u32>, TM>();

    for (var unit = 0u; unit < UNITS; unit++) {
        let line = group * UNITS + unit;
        var scales = array<vec2<u32>, TN>();
        for (var c = 0u; c < TN; c++) { // unroll
            scales[c] = weight_scale(line, c * 8u + lane);
        }
        // The 8 lanes hold the scales of 8 halves: of two units, those behind the last one never used.
        if ((unit & 1u) == 0u) {
            for (var m = 0u; m < TM; m++) { // unroll
                extras[m] = x_words((row0 + m) * params.x_pitch + (unit + (lane >> 2u)) * 12u + 8u + (lane & 3u));
            }
        }
        var own = array<vec4<u32>, TM>();
        for (var m = 0u; m < TM; m++) { // unroll
            own[m] = x_words((row0 + m) * params.x_pitch + unit * 12u + lane);
        }
        for (var block = 0u; block < 2u; block++) { // unroll
            var texels = array<vec4<u32>, TN>();
            for (var c = 0u; c < TN; c++) { // unroll
                texels[c] = weight_texel(line * 2u + block, c * 8u + lane);
            }
            var x_sums = array<f32, TM>();
            for (var h = 0u; h < 2u; h++) { // unroll
                var x_scales = array<f32, TM>();
                for (var m = 0u; m < TM; m++) { // unroll
                    let place = block * 2u + h;
                    let extra = subgroupShuffle(extras[m], (unit & 1u) * 4u + place);
                    x_scales[m] = bitcast<f32>(extra.x);
                    x_sums[m] += bitcast<f32>(extra.y);
                }
                // The lower half of a word may fall below zero by as much: a carry that this makes up for.
                var products = array<array<u32, TN>, TM>();
                for (var m = 0u; m < TM; m++) { // unroll
                    for (var c = 0u; c < TN; c++) { // unroll
                        products[m][c] = 0x8000u;
                    }
                }
                for (var j = 0u; j < 4u; j++) { // unroll
                    var even = array<u32, TN>();
                    var odd = array<u32, TN>();
                    for (var c = 0u; c < TN; c++) { // unroll
                        even[c] = (texels[c][j] >> (h * 4u)) & 0x000f000fu;
                        odd[c] = (texels[c][j] >> (h * 4u + 8u)) & 0x000f000fu;
                    }
                    for (var m = 0u; m < TM; m++) { // unroll
                        let words = spread_words(own[m], block * 4u + h * 2u + j / 2u);
                        for (var c = 0u; c < TN; c++) { // unroll
                            products[m][c] += even[c] * words[(j & 1u) * 2u];
                            products[m][c] += odd[c] * words[(j & 1u) * 2u + 1u];
                        }
                    }
                }
                for (var m = 0u; m < TM; m++) { // unroll
                    for (var c = 0u; c < TN; c++) { // unroll
                        let scale = block_scale(scales[c], block) * x_scales[m];
                        sums[m][c] += scale * f32(bitcast<i32>(products[m][c]) >> 16u);
                    }
                }
            }
            for (var m = 0u; m < TM; m++) { // unroll
                for (var c = 0u; c < TN; c++) { // unroll
                    sums[m][c] += nibble_minimum(scales[c], block) * x_sums[m];
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
