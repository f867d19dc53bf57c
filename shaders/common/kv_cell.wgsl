// Keys and values go through the cache in cells of 8 numbers: vec4s c and HEAD_CELLS + c of a head, which the rotary embedding
// turns together. `row` is block * num_kv_heads + kv head.
struct KvCell {
    a: vec4<f32>,
    b: vec4<f32>,
}
