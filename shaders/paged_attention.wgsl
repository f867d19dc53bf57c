// Causal attention over the paged cache in workgroup memory: 64 threads a (row, tile of query heads). Threads are positions
// for q*k and dimensions for p*v; softmax is online (1805.02867), 64 positions a turn, counted from position 0: the order of
// summation depends on nothing but the positions. One load of K and V serves all query heads of the tile.
//
// Bindings: attention_bindings.wgsl.

var<workgroup> queries: array<vec4<f32>, HEADS * HEAD_VEC4S>;
var<workgroup> scores: array<f32, HEADS * 64u>; // of this turn: [head][position]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head0 = workgroup.x * HEADS;
    let kv_head = head0 / params.head_group;
    let row = workgroup.y;
    let last = rows[row].y;
    let table = rows[row].w * params.table_pitch;
    for (var i = thread; i < HEADS * HEAD_VEC4S; i += 64u) {
        queries[i] = qkv[row * params.q_pitch + head0 * HEAD_VEC4S + i] * params.scale;
    }
    var top = array<f32, HEADS>();
    for (var h = 0u; h < HEADS; h++) { // unroll
        top[h] = LOWEST;
    }
    var total = array<f32, ITEMS>();
    var mixed = array<vec4<f32>, ITEMS>();
    workgroupBarrier();

    for (var t0 = 0u; t0 <= last; t0 += 64u) {
        let position = min(t0 + thread, last);
        let in_range = t0 + thread <= last;
        let own = block_tables[table + position / BLOCK_SIZE] * params.num_kv_heads + kv_head;
        var score = array<f32, HEADS>();
        for (var c = 0u; c < HEAD_CELLS; c++) {
            let k = key_cell(own, c, position % BLOCK_SIZE);
            for (var h = 0u; h < HEADS; h++) { // unroll
                score[h] += dot(queries[h * HEAD_VEC4S + c], k.a);
                score[h] += dot(queries[h * HEAD_VEC4S + HEAD_CELLS + c], k.b);
            }
        }
        let key_scale = kv_scales(own, position % BLOCK_SIZE).x;
        for (var h = 0u; h < HEADS; h++) { // unroll
            score[h] *= key_scale;
            scores[h * 64u + thread] = select(LOWEST, score[h], in_range);
        }
        workgroupBarrier();

        // Every thread finds the same maxima for itself: reads that a whole subgroup shares are cheaper than a tree's barriers.
        var shrink = array<f32, HEADS>();
        for (var h = 0u; h < HEADS; h++) { // unroll
            var higher = top[h];
            for (var i = 0u; i < 64u; i += 4u) {
                let at = h * 64u + i;
                higher = max(higher, max(max(scores[at], scores[at + 1u]), max(scores[at + 2u], scores[at + 3u])));
            }
            shrink[h] = exp(top[h] - higher);
            top[h] = higher;
        }
        workgroupBarrier();
        for (var h = 0u; h < HEADS; h++) { // unroll
            scores[h * 64u + thread] = select(0.0, exp(score[h] - top[h]), in_range);
        }
        workgroupBarrier();

        let count = min(64u, last - t0 + 1u);
        for (var n = 0u; n < ITEMS; n++) { // unroll
            let item = min(n * 64u + thread, HEADS * HEAD_VEC4S - 1u);
            let h = item / HEAD_VEC4S;
            var sum = total[n];
            var out = mixed[n];
            for (var s = 0u; s < HEADS; s++) { // unroll
                if (s == h) {
                    sum *= shrink[s];
                    out *= shrink[s];
                }
            }
            for (var i = 0u; i < count; i++) {
                let t = t0 + i;
                let block = block_tables[table + t / BLOCK_SIZE] * params.num_kv_heads + kv_head;
                let p = scores[h * 64u + i];
                sum += p;
                out += p * kv_scales(block, t % BLOCK_SIZE).y * value_vec4(block, t % BLOCK_SIZE, item % HEAD_VEC4S);
            }
            total[n] = sum;
            mixed[n] = out;
        }
        workgroupBarrier();
    }

    for (var n = 0u; n < ITEMS; n++) { // unroll
        let item = n * 64u + thread;
        if (item < HEADS * HEAD_VEC4S) {
            put_y(row * params.y_pitch + head0 * HEAD_VEC4S + item, mixed[n] / total[n]);
        }
    }
}
