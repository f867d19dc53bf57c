// Causal attention over the paged cache for GPUs, its length split as in flash-decoding (2307.08691 and what followed), inside
// a workgroup: TEAMS teams of 64 threads a (row, tile of query heads) take turns of 64 positions, team t every TEAMS-th one from
// its t-th on, each as paged_attention.wgsl does; the teams' sums are put together at the end. Turns are counted from position
// 0: the order of summation depends on nothing but the positions. One load of K and V serves all query heads of the tile.
//
// Bindings: attention_bindings.wgsl. key_cell and its like: see kv_read_*.wgsl.

const WORKGROUP: u32 = TEAMS * 64u;

var<workgroup> queries: array<vec4<f32>, HEADS * HEAD_VEC4S>;
var<workgroup> scores: array<f32, HEADS * WORKGROUP>; // of this turn: [head][team][position]
var<workgroup> team_tops: array<f32, HEADS * TEAMS>;  // [head][team]
var<workgroup> team_totals: array<f32, HEADS * TEAMS>;
var<workgroup> team_mixed: array<vec4<f32>, HEADS * HEAD_VEC4S * TEAMS>; // [team][HEADS * HEAD_VEC4S]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head0 = workgroup.x * HEADS;
    let kv_head = head0 / params.head_group;
    let row = workgroup.y;
    let last = rows[row].y;
    let table = rows[row].w * params.table_pitch;
    let team = thread / 64u;
    let member = thread % 64u;
    for (var i = thread; i < HEADS * HEAD_VEC4S; i += WORKGROUP) {
        queries[i] = qkv[row * params.q_pitch + head0 * HEAD_VEC4S + i] * params.scale;
    }
    var top = array<f32, HEADS>();
    for (var h = 0u; h < HEADS; h++) { // unroll
        top[h] = LOWEST;
    }
    var total = array<f32, ITEMS>();
    var mixed = array<vec4<f32>, ITEMS>();
    workgroupBarrier();

    for (var turn = 0u; turn <= last; turn += WORKGROUP) {
        // A team beyond the last position adds nothing: its scores are masked, and it has no values to add up.
        let t0 = turn + team * 64u;
        let position = min(t0 + member, last);
        let in_range = t0 + member <= last;
        let own = block_tables[table + position / BLOCK_SIZE] * params.num_kv_heads + kv_head;
        let slot = position % BLOCK_SIZE;
        var score = array<f32, HEADS>();
        for (var c = 0u; c < HEAD_CELLS; c++) {
            let k = key_cell(own, c, slot);
            for (var h = 0u; h < HEADS; h++) { // unroll
                score[h] += dot(queries[h * HEAD_VEC4S + c], k.a);
                score[h] += dot(queries[h * HEAD_VEC4S + HEAD_CELLS + c], k.b);
            }
        }
        let key_scale = kv_scales(own, slot).x;
        for (var h = 0u; h < HEADS; h++) { // unroll
            score[h] *= key_scale;
            scores[h * WORKGROUP + thread] = select(LOWEST, score[h], in_range);
        }
        workgroupBarrier();

        var shrink = array<f32, HEADS>();
        for (var h = 0u; h < HEADS; h++) { // unroll
            var higher = top[h];
            for (var i = 0u; i < 64u; i += 4u) {
                let at = h * WORKGROUP + team * 64u + i;
                higher = max(higher, max(max(scores[at], scores[at + 1u]), max(scores[at + 2u], scores[at + 3u])));
            }
            shrink[h] = exp(top[h] - higher);
            top[h] = higher;
        }
        workgroupBarrier();
        for (var h = 0u; h < HEADS; h++) { // unroll
            scores[h * WORKGROUP + thread] = select(0.0, exp(score[h] - top[h]), in_range);
        }
        workgroupBarrier();

        let count = min(64u, max(last + 1u, t0) - t0);
        for (var n = 0u; n < ITEMS; n++) { // unroll
            let item = min(n * 64u + member, HEADS * HEAD_VEC4S - 1u);
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
                let p = scores[h * WORKGROUP + team * 64u + i];
                sum += p;
                out += p * kv_scales(block, t % BLOCK_SIZE).y * value_vec4(block, t % BLOCK_SIZE, item % HEAD_VEC4S);
            }
            total[n] = sum;
            mixed[n] = out;
        }
        workgroupBarrier();
    }

    for (var n = 0u; n < ITEMS; n++) { // unroll
        let item = n * 64u + member;
        if (item < HEADS * HEAD_VEC4S) {
            team_mixed[team * HEADS * HEAD_VEC4S + item] = mixed[n];
            if (item % HEAD_VEC4S == 0u) {
                team_totals[item / HEAD_VEC4S * TEAMS + team] = total[n];
            }
        }
    }
    if (member == 0u) {
        for (var h = 0u; h < HEADS; h++) { // unroll
            team_tops[h * TEAMS + team] = top[h];
        }
    }
    workgroupBarrier();
    // The first team has position 0, so that some top is a score's.
    for (var item = thread; item < HEADS * HEAD_VEC4S; item += WORKGROUP) {
        let h = item / HEAD_VEC4S;
        var highest = LOWEST;
        for (var t = 0u; t < TEAMS; t++) { // unroll
            highest = max(highest, team_tops[h * TEAMS + t]);
        }
        var sum = 0.0;
        var out = vec4<f32>();
        for (var t = 0u; t < TEAMS; t++) { // unroll
            let part = exp(team_tops[h * TEAMS + t] - highest);
            sum += part * team_totals[h * TEAMS + t];
            out += part * team_mixed[t * HEADS * HEAD_VEC4S + item];
        }
        put_y(row * params.y_pitch + head0 * HEAD_VEC4S + item, out / sum);
    }
}
