// Weights as numbers: w = d*q + m, each rounded once. The GPU kernels add them up in one order, so this is written once.
fn dequantise(texel: vec4<u32>, j: u32, scale: f32, minimum: f32) -> vec4<f32> {
    let q = unpack4(texel, j);
    if (HAS_SCALE) {
        return fma(vec4<f32>(scale), q, vec4<f32>(minimum));
    }
    return q;
}

// Four more products, in the order of K.
fn dot_add(w: vec4<f32>, x4: vec4<f32>, sum: f32) -> f32 {
    return fma(w.w, x4.w, fma(w.z, x4.z, fma(w.y, x4.y, fma(w.x, x4.x, sum))));
}
