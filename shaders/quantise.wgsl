// Rows of f32 in 8 bits, for matmul_pairs.wgsl: x = scale * q, q from -127 to 127, a scale for every 16 numbers, half a block.
//
// A unit of 64 numbers is 12 texels: two for each of its four halves, then one for each, with its scale and the sum of its
// scale * q. Word 2j of a half holds q[4j] 16 bits above q[4j+2], word 2j+1 q[4j+1] above q[4j+3], as the words of a 4-bit block
// hold weights 4j and 4j+2 16 bits apart.
struct Params {
    x_pitch: u32, // vec4s a row of x
    y_pitch: u32, // texels a row of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch]
// Binding 2 is y, [M][y_pitch]: see y_words_*.wgsl.

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let item = id.x;
    if (item >= UNITS * 4u) {
        return;
    }
    let first = id.y * params.x_pitch + item * 4u;
    let unit = id.y * params.y_pitch + (item >> 2u) * 12u;
    let place = item & 3u;
    var values = array<vec4<f32>, 4>();
    var higher = vec4<f32>();
    for (var j = 0u; j < 4u; j++) { // unroll
        values[j] = x[first + j];
        higher = max(higher, abs(values[j]));
    }
    let top = max(max(higher.x, higher.y), max(higher.z, higher.w));
    var words = array<vec2<u32>, 4>();
    var whole = vec4<i32>();
    for (var j = 0u; j < 4u; j++) { // unroll
        let q = quantised(values[j], top);
        words[j] = pair_words(q);
        whole += q;
    }
    put_words(unit + place * 2u, vec4<u32>(words[0], words[1]));
    put_words(unit + place * 2u + 1u, vec4<u32>(words[2], words[3]));
    put_words(unit + 8u + place, scale_words(top, (whole.x + whole.y) + (whole.z + whole.w)));
}
