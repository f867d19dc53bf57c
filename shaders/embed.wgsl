// y[row] = W[token of row]: rows of the embedding, dequantised. W is packed like every weight matrix, tokens as columns.
struct Params {
    y_pitch: u32,     // vec4s a row of y
    width_vec4s: u32, // vec4s to write a row
    num_units: u32,   // units of 64 along the width
    first_token: u32, // the token of this piece's column 0
    num_tokens: u32,  // tokens in this piece; rows with other tokens are left alone
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>; // [M]: token or name, position, slot, sequence
// Bindings 2 and 3 are the weights: see data_*.wgsl and scales_*.wgsl.
@group(0) @binding(4) var<storage, read> sampled: array<u32>; // tokens that the pass before chose
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>; // [M][y_pitch]

// Tokens from here on are names: SAMPLED + i is sampled[i].
const SAMPLED: u32 = 0x80000000u;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let name = rows[id.y].x;
    let is_name = name >= SAMPLED;
    let token = select(name, sampled[select(0u, name - SAMPLED, is_name)], is_name) - params.first_token;
    // A token before this piece wraps round to a huge one.
    if (i >= params.width_vec4s || token >= params.num_tokens) {
        return;
    }
    // A thread of the products has four neighbouring columns, and they stand 8 apart.
    let column = (token & 3u) * 8u + ((token >> 2u) & 7u);
    let line = (token >> 5u) * params.num_units + (i >> 4u);
    let block = (i >> 3u) & 1u;
    let t = (i & 7u) / TEXEL_VEC4S;
    let texel = weight_texel((line * 2u + block) * BLOCK_TEXELS + t, column);
    var value = unpack4(texel, (i & 7u) % TEXEL_VEC4S);
    if (HAS_SCALE) {
        let words = weight_scale(line, column);
        value = value * block_scale(words, block) + vec4<f32>(block_minimum(words, block));
    }
    y[id.y * params.y_pitch + i] = value;
}
