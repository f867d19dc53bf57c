// y[M][N] = x[M][K] * W[N][K]^T for many rows on GPUs. A workgroup computes TILE_ROWS rows x 64 columns, 32 of K at a time:
// its threads bring both tiles into workgroup memory, the weights dequantised once, and each adds up TM rows x 4 columns.
//
// Order of summation, the same as in matvec_split.wgsl: along a segment of K, then over the segments in order.
//
// Bindings: matmul_bindings.wgsl.

// Both tiles hold vec4s along K. Columns lie as [TN][2 groups][8 lanes], so that the 16 lanes of a row of threads read
// neighbours; a row of x has its 8 vec4s shuffled, so that two rows of threads read different banks.
var<workgroup> x_tile: array<vec4<f32>, TILE_ROWS * 8u>; // [TILE_ROWS][8]
var<workgroup> w_tile: array<vec4<f32>, 64u * 8u>;       // [8][64]

fn x_place(row: u32, step: u32) -> u32 {
    return row * 8u + (step ^ (row & 7u));
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 7u;
    let wanted = workgroup.x * 2u + ((thread >> 3u) & 1u);
    let thread_row = thread >> 4u;
    let row0 = workgroup.y * TILE_ROWS;

    // What this thread loads: of x, vec4 `x_step` of some rows; of W, W_STEPS vec4s of one column.
    let x_row = thread >> 3u;
    let x_step = thread & 7u;
    let w_column = thread & 31u;
    let w_half = (thread >> 5u) & 1u;
    let w_step = (thread >> 6u) * W_STEPS;
    // A second group beyond the last is the last one again, and is not stored.
    let w_group = min(workgroup.x * 2u + w_half, params.num_groups - 1u);
    let w_place = (w_column >> 3u) * 16u + w_half * 8u + (w_column & 7u);

    let segment_units = (UNITS + SEGMENTS - 1u) / SEGMENTS;
    var totals = array<array<f32, TN>, TM>();
    for (var segment = 0u; segment < SEGMENTS; segment++) {
        let first = min(segment * segment_units, UNITS);
        let end = min(first + segment_units, UNITS);
        var sums = array<array<f32, TN>, TM>();
        for (var block = first * 2u; block < end * 2u; block++) {
            let line = w_group * UNITS + (block >> 1u);
            var scales = vec2<u32>(0u);
            if (HAS_SCALE) {
                scales = weight_scale(line, w_column);
            }
            let odd = (block & 1u) == 1u;
            let d = select(block_scale(scales, 0u), block_scale(scales, 1u), odd);
            let m = select(block_minimum(scales, 0u), block_minimum(scales, 1u), odd);
            // Nobody still reads the tiles of the block before.
            workgroupBarrier();
            for (var i = 0u; i < W_STEPS; i++) { // unroll
                let step = w_step + i;
                let texel_line = (line * 2u + (block & 1u)) * BLOCK_TEXELS + step / TEXEL_VEC4S;
                let texel = weight_texel(texel_line, w_column);
                w_tile[step * 64u + w_place] = dequantise(texel, step % TEXEL_VEC4S, d, m);
            }
            for (var i = 0u; i < TM / 2u; i++) { // unroll
                let row = i * (WORKGROUP / 8u) + x_row;
                x_tile[x_place(row, x_step)] = x_at((row0 + row) * params.x_pitch + block * 8u + x_step);
            }
            workgroupBarrier();
            for (var step = 0u; step < 8u; step++) { // unroll
                var w = array<vec4<f32>, TN>();
                for (var c = 0u; c < TN; c++) { // unroll
                    w[c] = w_tile[step * 64u + c * 16u + (thread & 15u)];
                }
                for (var r = 0u; r < TM; r++) { // unroll
                    let x4 = x_tile[x_place(r * THREAD_ROWS + thread_row, step)];
                    for (var c = 0u; c < TN; c++) { // unroll
                        sums[r][c] = dot_add(w[c], x4, sums[r][c]);
                    }
                }
            }
        }
        for (var r = 0u; r < TM; r++) { // unroll
            for (var c = 0u; c < TN; c++) { // unroll
                totals[r][c] += sums[r][c];
            }
        }
    }
    if (wanted < params.num_groups) {
        for (var r = 0u; r < TM; r++) { // unroll
            store(row0 + r * THREAD_ROWS + thread_row, wanted, lane, totals[r], true);
        }
    }
}
