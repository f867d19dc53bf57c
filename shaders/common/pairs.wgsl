// Numbers of which the largest is `top`, as whole numbers from -127 to 127.
fn quantised(value: vec4<f32>, top: f32) -> vec4<i32> {
    // Below this the quotient would overflow, and nothing is worth counting.
    return vec4<i32>(round(value * select(0.0, 127.0 / top, top > 1.0e-30)));
}

// Two words of two numbers each, the first 16 bits higher: what multiplies two weights of a word at once.
fn pair_words(q: vec4<i32>) -> vec2<u32> {
    return bitcast<vec2<u32>>((q.xy << vec2<u32>(16u)) + q.zw);
}

// What is kept of half a block beside its numbers: the scale, and the sum of scale * q.
fn scale_words(top: f32, whole: i32) -> vec4<u32> {
    let scale = top / 127.0;
    return bitcast<vec4<u32>>(vec4<f32>(scale, scale * f32(whole), 0.0, 0.0));
}
