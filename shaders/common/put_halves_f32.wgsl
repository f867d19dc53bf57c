// vec2 i of a row that starts at `start`, as it is, if it counts; put_halves_i8.wgsl says who calls it.
fn put_vec2(start: u32, i: u32, value: vec2<f32>, counts: bool) {
    let next = vec2<f32>(subgroupShuffleXor(value.x, 1u), subgroupShuffleXor(value.y, 1u));
    if (counts && (i & 1u) == 0u) {
        put_y(start + (i >> 1u), vec4<f32>(value, next));
    }
}
