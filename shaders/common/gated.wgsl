// silu(gate) * up of two pairs (1606.08415).
fn gated(pairs: vec4<f32>) -> vec2<f32> {
    return pairs.xz / (1.0 + exp(-pairs.xz)) * pairs.yw;
}
