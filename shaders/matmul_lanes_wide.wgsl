// y[M][N] = x[M][K] * W[N][K]^T for CPU drivers without subgroups of 8: as matmul_lanes.wgsl, with fewer lanes to a group of
// columns and more columns to a lane. There a read costs as much as many products, whether lanes share its address or not, so
// every read of x serves TN * WIDE columns.
//
// Columns come in groups of 32: lane l of LANES, tile column c, part v owns column 32*group + 4*(LANES*v + l) + c. K and the
// order of summation are matmul_lanes.wgsl's.
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
    var fits = array<Part, TEXEL_VEC4S>();
    for (var j = 0u; j < TEXEL_VEC4S; j++) { // unroll
        fits[j] = part_of(fitted(vec4<f32>(1.0), j), lane);
    }

    for (var unit = 0u; unit < UNITS; unit++) {
        let line = group * UNITS + unit;
        var scales = array<array<vec2<u32>, TN>, WIDE>();
        if (HAS_SCALE) {
            for (var v = 0u; v < WIDE; v++) { // unroll
                for (var c = 0u; c < TN; c++) { // unroll
                    scales[v][c] = weight_scale(line, c * 8u + v * LANES + lane);
                }
            }
        }
        for (var block = 0u; block < 2u; block++) { // unroll
            var x_sums = array<Part, TM>();
            var products = array<array<array<f32, TN>, WIDE>, TM>();
            for (var t = 0u; t < BLOCK_TEXELS; t++) { // unroll
                var texels = array<array<vec4<u32>, TN>, WIDE>();
                for (var v = 0u; v < WIDE; v++) { // unroll
                    for (var c = 0u; c < TN; c++) { // unroll
                        let texel = weight_texel((line * 2u + block) * BLOCK_TEXELS + t, c * 8u + v * LANES + lane);
                        texels[v][c] = prepared(texel);
                    }
                }
                for (var j = 0u; j < TEXEL_VEC4S; j++) { // unroll
                    var x4 = array<vec4<f32>, TM>();
                    for (var m = 0u; m < TM; m++) { // unroll
                        let at = (row0 + m) * params.x_pitch + unit * 16u + block * 8u + t * TEXEL_VEC4S + j;
                        let part = x_part(at, lane);
                        if (HAS_MINIMUM) {
                            x_sums[m] += part;
                        }
                        x4[m] = whole_of(part * fits[j]);
                    }
                    for (var v = 0u; v < WIDE; v++) { // unroll
                        for (var c = 0u; c < TN; c++) { // unroll
                            let word = texels[v][c][j & 3u];
                            let weights = masked4(texels[v][c], j, word, MASKS[j / 4u], OFFSETS[j / 4u]);
                            for (var m = 0u; m < TM; m++) { // unroll
                                products[m][v][c] = dot_add(weights, x4[m], products[m][v][c]);
                            }
                        }
                    }
                }
            }
            for (var m = 0u; m < TM; m++) { // unroll
                let x4_sum = whole_of(x_sums[m]);
                let x_sum = (x4_sum.x + x4_sum.y) + (x4_sum.z + x4_sum.w);
                for (var v = 0u; v < WIDE; v++) { // unroll
                    for (var c = 0u; c < TN; c++) { // unroll
                        if (HAS_SCALE) {
                            let scale = block_scales(scales[v][c], block);
                            sums[m][v][c] += scale.x * products[m][v][c];
                            if (HAS_MINIMUM) {
                                sums[m][v][c] += scale.y * x_sum;
                            }
                        } else {
                            sums[m][v][c] += products[m][v][c];
                        }
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

// Four more products, in the order of K. Not by fma(): CPU drivers have none that is fast, and SwiftShader calls a function.
fn dot_add(w: vec4<f32>, x4: vec4<f32>, sum: f32) -> f32 {
    return (((sum + w.x * x4.x) + w.y * x4.y) + w.z * x4.z) + w.w * x4.w;
}
