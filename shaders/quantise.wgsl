// Rows of f32 in 8 bits, for matmul_pairs.wgsl: x = scale * q, q from -127 to 127, a scale for every 16 numbers.
//
// A unit of 64 numbers is 10 texels: 4 for each of its blocks of 32, then one for each, of the scales of its halves and the sum
// of its scale * q. Half a block is two texels: word 2j holds q[4j] 16 bits above q[4j+2], word 2j+1 q[4j+1] above q[4j+3], as
// the words of a 4-bit block hold weights 4j and 4j+2 16 bits apart.
struct Params {
    x_pitch: u32, // vec4s a row of x
    y_pitch: u32, // texels a row of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [M][x_pitch]
// Binding 2 is y, [M][y_pitch]: see y_words_*.wgsl.

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let block = id.x;
    if (block >= UNITS * 2u) {
        return;
    }
    let first_vec4 = id.y * params.x_pitch + block * 8u;
    let unit = id.y * params.y_pitch + (block >> 1u) * 10u;
    let first = unit + (block & 1u) * 4u;
    var scales = array<f32, 2>();
    var shares = array<f32, 2>();
    for (var h = 0u; h < 2u; h++) { // unroll
        var values = array<vec4<f32>, 4>();
        var higher = vec4<f32>();
        for (var j = 0u; j < 4u; j++) { // unroll
            values[j] = x[first_vec4 + h * 4u + j];
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
        put_words(first + h * 2u, vec4<u32>(words[0], words[1]));
        put_words(first + h * 2u + 1u, vec4<u32>(words[2], words[3]));
        scales[h] = top / 127.0;
        shares[h] = scales[h] * f32((whole.x + whole.y) + (whole.z + whole.w));
    }
    let extra = vec4<f32>(scales[0], scales[1], shares[0] + shares[1], 0.0);
    put_words(unit + 8u + (block & 1u), bitcast<vec4<u32>>(extra));
}
