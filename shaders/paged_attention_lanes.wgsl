// Causal attention over the paged cache for CPU drivers: 8 lanes a (row, tile of query heads), no barrier. Lanes are positions
// for q*k and dimensions for p*v; softmax is online (1805.02867), 16 positions a turn, counted from position 0: the order of
// summation depends on nothing but the positions. One load of K and V serves all query heads of the tile.
//
// Bindings: attention_bindings.wgsl.

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head0 = workgroup.x * HEADS;
    let kv_head = head0 / params.head_group;
    let row = workgroup.y;
    let last = rows[row].y;
    let table = rows[row].w * params.table_pitch;

    var q = array<array<vec4<f32>, LANE_VEC4S>, HEADS>();
    var top = array<f32, HEADS>();
    var total = array<f32, HEADS>();
    var mixed = array<array<KvCell, LANE_CELLS>, HEADS>();
    for (var h = 0u; h < HEADS; h++) { // unroll
        top[h] = LOWEST;
        for (var n = 0u; n < LANE_VEC4S; n++) { // unroll
            let i = min(n * 8u + lane, HEAD_VEC4S - 1u);
            q[h][n] = qkv[row * params.q_pitch + (head0 + h) * HEAD_VEC4S + i] * params.scale;
        }
    }

    for (var t0 = 0u; t0 <= last; t0 += 16u) {
        // Two runs of 8 positions, each within one block. What lies beyond `last` is masked, and read at `last` instead.
        var first = array<u32, 2>();
        for (var p = 0u; p < 2u; p++) { // unroll
            let block = block_tables[table + min(t0 + p * 8u, last) / BLOCK_SIZE];
            first[p] = block * params.num_kv_heads + kv_head;
        }
        var scores = array<array<f32, 2>, HEADS>();
        var scales = array<vec2<f32>, 2>();
        var slots = array<u32, 2>();
        for (var p = 0u; p < 2u; p++) { // unroll
            slots[p] = min(t0 + p * 8u + lane, last) % BLOCK_SIZE;
            scales[p] = kv_scales(first[p], slots[p]);
        }
        // In the order of memory, where a block has both runs.
        for (var c = 0u; c < HEAD_CELLS; c++) { // unroll
            for (var p = 0u; p < 2u; p++) { // unroll
                let k = key_cell(first[p], c, slots[p]);
                for (var h = 0u; h < HEADS; h++) { // unroll
                    scores[h][p] += dot(spread_lane(q[h][c / 8u], c % 8u), k.a);
                    scores[h][p] += dot(spread_lane(q[h][(HEAD_CELLS + c) / 8u], (HEAD_CELLS + c) % 8u), k.b);
                }
            }
        }
        for (var h = 0u; h < HEADS; h++) { // unroll
            for (var p = 0u; p < 2u; p++) { // unroll
                scores[h][p] = select(LOWEST, scores[h][p] * scales[p].x, t0 + p * 8u + lane <= last);
            }
            let higher = max(top[h], max_lanes(max(scores[h][0], scores[h][1])));
            let shrink = exp(top[h] - higher);
            top[h] = higher;
            for (var p = 0u; p < 2u; p++) { // unroll
                let weight = exp(scores[h][p] - higher);
                scores[h][p] = select(0.0, weight, t0 + p * 8u + lane <= last);
            }
            total[h] = total[h] * shrink + (scores[h][0] + scores[h][1]);
            for (var n = 0u; n < LANE_CELLS; n++) { // unroll
                mixed[h][n].a *= shrink;
                mixed[h][n].b *= shrink;
            }
            for (var p = 0u; p < 2u; p++) { // unroll
                scores[h][p] *= scales[p].y;
            }
        }
        for (var p = 0u; p < 2u; p++) { // unroll
            for (var i = 0u; i < 8u; i++) { // unroll
                let slot = min(t0 + p * 8u + i, last) % BLOCK_SIZE;
                for (var n = 0u; n < LANE_CELLS; n++) { // unroll
                    let v = value_cell(first[p], slot, min(n * 8u + lane, HEAD_CELLS - 1u));
                    for (var h = 0u; h < HEADS; h++) { // unroll
                        let weight = spread_one(scores[h][p], i);
                        mixed[h][n].a += weight * v.a;
                        mixed[h][n].b += weight * v.b;
                    }
                }
            }
        }
    }

    for (var h = 0u; h < HEADS; h++) { // unroll
        let whole = sum_lanes(total[h]);
        for (var n = 0u; n < LANE_CELLS; n++) { // unroll
            let c = n * 8u + lane;
            let start = (head0 + h) * HEAD_VEC4S;
            put_vec4(row * params.y_pitch, start + c, mixed[h][n].a / whole, c < HEAD_CELLS);
            put_vec4(row * params.y_pitch, start + HEAD_CELLS + c, mixed[h][n].b / whole, c < HEAD_CELLS);
        }
    }
}
