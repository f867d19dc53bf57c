// y = silu(gate) * up (1606.08415), where gate and up are stored differently and could not be one fused matrix.
struct Params {
    x_pitch: u32,     // vec4s a row of x: gate, then up
    up_vec4: u32,     // first vec4 of up in a row
    y_pitch: u32,     // vec4s a row of y
    width_vec4s: u32, // vec4s of gate, of up and of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch]
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>; // [M][y_pitch]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.width_vec4s) {
        return;
    }
    let gate = x[id.y * params.x_pitch + id.x];
    let up = x[id.y * params.x_pitch + params.up_vec4 + id.x];
    y[id.y * params.y_pitch + id.x] = gate / (vec4<f32>(1.0) + exp(-gate)) * up;
}
