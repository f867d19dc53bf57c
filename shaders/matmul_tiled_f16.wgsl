// y[M][N] = x[M][K] * W[N][K]^T for many rows on GPUs, as matmul_tiled.wgsl, with products in half precision: a thread adds up
// TM rows x 4 columns over a block of 32 of K in f16, two columns an instruction, and the blocks in f32.
//
// Bindings: matmul_bindings.wgsl.

// x along K, a row's 8 vec4s shuffled as in matmul_tiled.wgsl. W across: a vec4 is the four columns of a lane.
var<workgroup> x_tile: array<vec4<f16>, TILE_ROWS * 8u>; // [TILE_ROWS][8]
var<workgroup> w_tile: array<vec4<f16>, 32u * 16u>;      // [32][2 groups][8 lanes]

fn x_place(row: u32, step: u32) -> u32 {
    return row * 8u + (step ^ (row & 7u));
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = thread & 15u;
    let lane = thread & 7u;
    let wanted = workgroup.x * 2u + (place >> 3u);
    // A second group beyond the last is the last one again, and is not stored.
    let group = min(wanted, params.num_groups - 1u);
    // This is also which 4 of a block's 32 of K this thread loads, of the columns that it adds up.
    let thread_row = thread >> 4u;
    let row0 = workgroup.y * TILE_ROWS;
    let largest = vec4<f32>(65504.0);

    var sums = array<vec4<f32>, TM>();
    for (var block = 0u; block < UNITS * 2u; block++) {
        let line = group * UNITS + (block >> 1u);
        let odd = (block & 1u) == 1u;
        let texel_line = (line * 2u + (block & 1u)) * BLOCK_TEXELS + thread_row / TEXEL_VEC4S;
        var w = array<vec4<f32>, TN>();
        for (var c = 0u; c < TN; c++) { // unroll
            var scales = vec2<u32>(0u);
            if (HAS_SCALE) {
                scales = weight_scale(line, c * 8u + lane);
            }
            let d = select(block_scale(scales, 0u), block_scale(scales, 1u), odd);
            let m = select(block_minimum(scales, 0u), block_minimum(scales, 1u), odd);
            w[c] = dequantise(weight_texel(texel_line, c * 8u + lane), thread_row % TEXEL_VEC4S, d, m);
        }
        // Nobody still reads the tiles of the block before.
        workgroupBarrier();
        for (var i = 0u; i < 4u; i++) { // unroll
            w_tile[(thread_row * 4u + i) * 16u + place] = vec4<f16>(vec4<f32>(w[0][i], w[1][i], w[2][i], w[3][i]));
        }
        for (var i = 0u; i < TM / 2u; i++) { // unroll
            let row = i * 16u + (thread >> 3u);
            let x4 = x_at((row0 + row) * params.x_pitch + block * 8u + lane);
            x_tile[x_place(row, lane)] = vec4<f16>(clamp(x4, -largest, largest));
        }
        workgroupBarrier();
        var products = array<vec4<f16>, TM>();
        for (var step = 0u; step < 8u; step++) { // unroll
            var w4 = array<vec4<f16>, 4>();
            for (var i = 0u; i < 4u; i++) { // unroll
                w4[i] = w_tile[(step * 4u + i) * 16u + place];
            }
            for (var r = 0u; r < TM; r++) { // unroll
                let x4 = x_tile[x_place(r * THREAD_ROWS + thread_row, step)];
                for (var i = 0u; i < 4u; i++) { // unroll
                    products[r] = fma(w4[i], vec4<f16>(x4[i]), products[r]);
                }
            }
        }
        for (var r = 0u; r < TM; r++) { // unroll
            sums[r] += vec4<f32>(products[r]);
        }
    }
    if (wanted < params.num_groups) {
        for (var r = 0u; r < TM; r++) { // unroll
            let total = array<f32, TN>(sums[r].x, sums[r].y, sums[r].z, sums[r].w);
            store(row0 + r * THREAD_ROWS + thread_row, wanted, lane, total, true);
        }
    }
}
