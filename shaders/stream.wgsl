// Reads every word of a big buffer or texture once and adds them up: the bandwidth of memory as a kernel sees it. Neighbouring
// threads read neighbouring vec4s. Binding 0 are the words: see words_*.wgsl.
@group(0) @binding(1) var<storage, read_write> y: array<u32>; // [THREADS]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>(0u);
    for (var i = 0u; i < VEC4S; i++) {
        sum += words(i * THREADS + id.x);
    }
    y[id.x] = sum.x + sum.y + sum.z + sum.w;
}
