// vec4 i of a row that starts at `start`, as it is, if it counts; put_i8.wgsl says who calls it.
fn put_vec4(start: u32, i: u32, value: vec4<f32>, counts: bool) {
    if (counts) {
        put_y(start + i, value);
    }
}
