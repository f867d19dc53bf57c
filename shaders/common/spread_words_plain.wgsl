// Without subgroups every lane reads x itself: the address is the same for all, so the hardware reads it once.
fn spread_words(own: vec4<u32>, base: u32, j: u32) -> vec4<u32> {
    return x_words(base + j);
}

fn spread_scales(own: vec4<u32>, j: u32, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(x_words(i));
}
