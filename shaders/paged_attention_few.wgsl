// Causal attention over the paged cache for CPU drivers without subgroups of 8: a (row, tile of query heads) is the work of 4
// threads, which such a driver has in one vector. There a read of memory costs as much as many products, whether threads share
// its address or not, so queries are held in registers, and a read of K or V serves all query heads of the tile.
//
// What is added up, and in which order, is paged_attention.wgsl's: 64 positions a turn, softmax online (1805.02867).
//
// Bindings: attention_bindings.wgsl.

var<workgroup> scores: array<f32, HEADS * 64u>; // of this turn: [head][position]
var<workgroup> tops: array<f32, HEADS * 4u>; // [head][thread]

@compute @workgroup_size(4)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head0 = workgroup.x * HEADS;
    let kv_head = head0 / params.head_group;
    let row = workgroup.y;
    let last = rows[row].y;
    let table = rows[row].w * params.table_pitch;
    var queries = array<array<vec4<f32>, HEAD_VEC4S>, HEADS>();
    var top = array<f32, HEADS>();
    for (var h = 0u; h < HEADS; h++) { // unroll
        for (var i = 0u; i < HEAD_VEC4S; i++) { // unroll
            queries[h][i] = qkv[row * params.q_pitch + (head0 + h) * HEAD_VEC4S + i] * params.scale;
        }
        top[h] = LOWEST;
    }
    var total = array<f32, HEADS>();
    var mixed = array<array<KvCell, ITEMS>, HEADS>();

    for (var t0 = 0u; t0 <= last; t0 += 64u) {
        let count = min(64u, last - t0 + 1u);
        var higher = top;
        for (var i = 0u; i < count; i += 4u) {
            let position = min(t0 + i + thread, last);
            let block = block_tables[table + position / BLOCK_SIZE] * params.num_kv_heads + kv_head;
            var score = array<f32, HEADS>();
            for (var c = 0u; c < HEAD_CELLS; c++) { // unroll
                let k = key_cell(block, c, position % BLOCK_SIZE);
                for (var h = 0u; h < HEADS; h++) { // unroll
                    score[h] += dot(queries[h][c], k.a);
                    score[h] += dot(queries[h][HEAD_CELLS + c], k.b);
                }
            }
            let key_scale = kv_scales(block, position % BLOCK_SIZE).x;
            for (var h = 0u; h < HEADS; h++) { // unroll
                score[h] *= key_scale;
                // Threads beyond the last position look at it again: it changes no maximum.
                scores[h * 64u + i + thread] = score[h];
                higher[h] = max(higher[h], score[h]);
            }
        }
        for (var h = 0u; h < HEADS; h++) { // unroll
            tops[h * 4u + thread] = higher[h];
        }
        workgroupBarrier();

        for (var h = 0u; h < HEADS; h++) { // unroll
            higher[h] = max(max(tops[h * 4u], tops[h * 4u + 1u]), max(tops[h * 4u + 2u], tops[h * 4u + 3u]));
            let shrink = exp(top[h] - higher[h]);
            top[h] = higher[h];
            total[h] *= shrink;
            for (var n = 0u; n < ITEMS; n++) { // unroll
                mixed[h][n].a *= shrink;
                mixed[h][n].b *= shrink;
            }
            for (var i = 0u; i < count; i += 4u) {
                let at = h * 64u + i + thread;
                scores[at] = exp(scores[at] - top[h]);
            }
        }
        workgroupBarrier();

        for (var i = 0u; i < count; i++) {
            let t = t0 + i;
            let block = block_tables[table + t / BLOCK_SIZE] * params.num_kv_heads + kv_head;
            let value_scale = kv_scales(block, t % BLOCK_SIZE).y;
            var p = array<f32, HEADS>();
            for (var h = 0u; h < HEADS; h++) { // unroll
                p[h] = scores[h * 64u + i];
                total[h] += p[h];
                p[h] *= value_scale;
            }
            for (var n = 0u; n < ITEMS; n++) { // unroll
                let v = value_cell(block, t % BLOCK_SIZE, min(n * 4u + thread, HEAD_CELLS - 1u));
                for (var h = 0u; h < HEADS; h++) { // unroll
                    mixed[h][n].a += p[h] * v.a;
                    mixed[h][n].b += p[h] * v.b;
                }
            }
        }
        workgroupBarrier();
    }

    for (var h = 0u; h < HEADS; h++) { // unroll
        for (var n = 0u; n < ITEMS; n++) { // unroll
            let c = n * 4u + thread;
            if (c < HEAD_CELLS) {
                let at = row * params.y_pitch + (head0 + h) * HEAD_VEC4S + c;
                put_y(at, mixed[h][n].a / total[h]);
                put_y(at + HEAD_CELLS, mixed[h][n].b / total[h]);
            }
        }
    }
}
