// Multiplies and adds in registers and nothing else: the peak of f32 arithmetic. Eight chains that do not depend on each other
// hide the latency of one.
struct Params {
    factor: f32,
    addend: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>; // [threads]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4<f32>(params.factor);
    let addend = vec4<f32>(params.addend);
    var low = vec4<f32>(0.0, 1.0, 2.0, 3.0) + vec4<f32>(f32(id.x & 7u));
    var high = low + vec4<f32>(4.0);
    for (var i = 0u; i < TURNS; i++) {
        for (var step = 0u; step < STEPS; step++) { // unroll
            low = fma(low, factor, addend);
            high = fma(high, factor, addend);
        }
    }
    y[id.x] = dot(low + high, vec4<f32>(1.0));
}
