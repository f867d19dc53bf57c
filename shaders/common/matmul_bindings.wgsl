// What every matrix kernel binds.
struct Params {
    x_pitch: u32,    // vec4s a row of x
    y_pitch: u32,    // floats a row of y
    y_column: u32,   // first column of y to write
    num_groups: u32, // groups of 32 columns
    z_pitch: u32,    // texels a row of what the next norm's product reads
    eps: f32,        // added to the mean square of a norm
}

@group(0) @binding(0) var<uniform> params: Params;
// Binding 1 is x: see x_*.wgsl.
// Bindings 2 and 3 are the weights: see data_*.wgsl and scales_*.wgsl.
@group(0) @binding(4) var<storage, read> bias: array<vec4<f32>>; // [N / 4]
// Binding 5 is y, and others may follow: see store_*.wgsl and row_scale_*.wgsl.
