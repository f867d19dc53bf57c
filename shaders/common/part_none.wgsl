// Every thread reads all of x: see part_quad.wgsl.
alias Part = vec4<f32>;

fn x_part(i: u32, lane: u32) -> Part {
    return x_at(i);
}

fn part_of(whole: vec4<f32>, lane: u32) -> Part {
    return whole;
}

fn whole_of(part: Part) -> vec4<f32> {
    return part;
}
