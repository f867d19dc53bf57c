// y[M][N] = x[M][K] * W[N][K]^T for CPU drivers without subgroups of 8, x in 8 bits: the products are matmul_pairs.wgsl's, the
// tiles matmul_lanes_wide.wgsl's.
//
// Bindings: matmul_bindings.wgsl.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let wanted = workgroup.x * (WORKGROUP / LANES) + thread / LANES;
    // A slice beyond the last group computes it again and stores nothing: every lane stays in step.
    let group = min(wanted, params.num_groups - 1u);
    let row0 = workgroup.y * TM;
    var sums = array<array<array<f32, TN>, WIDE>, TM>();

    for (var unit = 0u; unit < UNITS; unit++) {
        let line = group * UNITS + unit;
        var scales = array<array<vec2<u32>, TN>, WIDE>();
        for (var v = 0u; v < WIDE; v++) { // unroll
            for (var c = 0u; c < TN; c++) { // unroll
                scales[v][c] = weight_scale(line, c * 8u + v * LANES + lane);
            }
        }
        for (var block = 0u; block < 2u; block++) { // unroll
            var texels = array<array<vec4<u32>, TN>, WIDE>();
            for (var v = 0u; v < WIDE; v++) { // unroll
                for (var c = 0u; c < TN; c++) { // unroll
                    texels[v][c] = weight_texel(line * 2u + block, c * 8u + v * LANES + lane);
                }
            }
            var own = array<array<vec2<f32>, TN>, WIDE>();
            for (var v = 0u; v < WIDE; v++) { // unroll
                for (var c = 0u; c < TN; c++) { // unroll
                    own[v][c] = block_scales(scales[v][c], block);
                }
            }
            var x_sums = array<f32, TM>();
            for (var h = 0u; h < 2u; h++) { // unroll
                var x_scales = array<f32, TM>();
                for (var m = 0u; m < TM; m++) { // unroll
                    let extra = x_words((row0 + m) * params.x_pitch + unit * 12u + 8u + block * 2u + h);
                    x_scales[m] = bitcast<f32>(extra.x);
                    x_sums[m] += bitcast<f32>(extra.y);
                }
                // The lower half of a word may fall below zero by as much: a carry that this makes up for.
                var products = array<array<array<u32, TN>, WIDE>, TM>();
                for (var m = 0u; m < TM; m++) { // unroll
                    for (var v = 0u; v < WIDE; v++) { // unroll
                        for (var c = 0u; c < TN; c++) { // unroll
                            products[m][v][c] = 0x8000u;
                        }
                    }
                }
                for (var i = 0u; i < 2u; i++) { // unroll
                    var x4 = array<vec4<u32>, TM>();
                    for (var m = 0u; m < TM; m++) { // unroll
                        x4[m] = x_words((row0 + m) * params.x_pitch + unit * 12u + block * 4u + h * 2u + i);
                    }
                    for (var j = 0u; j < 2u; j++) { // unroll
                        for (var v = 0u; v < WIDE; v++) { // unroll
                            for (var c = 0u; c < TN; c++) { // unroll
                                let word = texels[v][c][i * 2u + j];
                                let even = nibbles(word, NIBBLES[h], LIFTS[h]);
                                let odd = nibbles(word, NIBBLES[h + 2u], LIFTS[h + 2u]);
                                for (var m = 0u; m < TM; m++) { // unroll
                                    products[m][v][c] += even * x4[m][j * 2u];
                                    products[m][v][c] += odd * x4[m][j * 2u + 1u];
                                }
                            }
                        }
                    }
                }
                for (var m = 0u; m < TM; m++) { // unroll
                    for (var v = 0u; v < WIDE; v++) { // unroll
                        for (var c = 0u; c < TN; c++) { // unroll
                            let scale = own[v][c].x * x_scales[m];
                            sums[m][v][c] += scale * f32(bitcast<i32>(products[m][v][c]) >> 16u);
                        }
                    }
                }
            }
            for (var m = 0u; m < TM; m++) { // unroll
                for (var v = 0u; v < WIDE; v++) { // unroll
                    for (var c = 0u; c < TN; c++) { // unroll
                        sums[m][v][c] += own[v][c].y * x_sums[m];
                    }
                }
            }
        }
    }
    for (var m = 0u; m < TM; m++) { // unroll
        for (var v = 0u; v < WIDE; v++) { // unroll
            store(row0 + m, group, v * LANES + lane, sums[m][v], wanted < params.num_groups);
        }
    }
}

// Nibbles n and n + 4 of a word, and a number so high that in its sum with them they are at the foot of the mantissa.
const NIBBLES = array<u32, 4>(0x000f000fu, 0x00f000f0u, 0x0f000f00u, 0xf000f000u);
const LIFTS = array<f32, 4>(8388608.0, 134217728.0, 2147483648.0, 51539607552.0);

// Two nibbles of a word, 16 bits apart. SwiftShader shifts lane by lane: instead, the nibbles become a number of 20 bits at
// some height, which is added to one that is high enough. Which nibbles is a constant of the caller's: see masked_none.wgsl.
fn nibbles(word: u32, mask: u32, lift: f32) -> u32 {
    return bitcast<u32>(f32(bitcast<i32>(word & mask)) + lift) & 0x000f000fu;
}
