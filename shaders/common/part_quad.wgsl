// Threads in fours share what they read of x: each reads one number of four, side by side, which CPU drivers do in one go,
// and hands it round. A read of the same four by every thread costs them several times as much.
alias Part = f32;

fn x_part(i: u32, lane: u32) -> Part {
    return x_number(i, lane & 3u);
}

fn part_of(whole: vec4<f32>, lane: u32) -> Part {
    return whole[lane & 3u];
}

fn whole_of(part: Part) -> vec4<f32> {
    return vec4<f32>(
        quadBroadcast(part, 0u), quadBroadcast(part, 1u), quadBroadcast(part, 2u), quadBroadcast(part, 3u));
}
