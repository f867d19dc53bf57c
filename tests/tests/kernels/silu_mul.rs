//! The gated activation, from gates that saturate one way to gates that saturate the other.

use firstlight_shaders::silu_mul::{Params, cpu, program, workgroups};
use firstlight_tests::TestRng;

use super::{Bench, check_close, floats, inside, poison};

const ROWS: usize = 3;

/// Gates of about `size` in rows of `width`.
fn check(bench: &mut Bench, width: usize, size: f32) {
    let mut random = TestRng::new(width as u64);
    // Neither what lies between gate and up nor what follows up is a number.
    let (up_column, x_pitch, y_pitch) = (width + 4, 2 * width + 12, width + 8);
    let mut x = vec![f32::NAN; ROWS * x_pitch];
    let mut expected = Vec::new();
    for row in x.chunks_mut(x_pitch) {
        let gate: Vec<f32> = floats(&mut random, width).iter().map(|v| v * size).collect();
        let up = floats(&mut random, width);
        row[..width].copy_from_slice(&gate);
        row[up_column..up_column + width].copy_from_slice(&up);
        expected.push(cpu(&gate, &up));
    }
    let params = Params {
        x_pitch: x_pitch as u32 / 4,
        up_vec4: up_column as u32 / 4,
        y_pitch: y_pitch as u32 / 4,
        width_vec4s: width as u32 / 4,
    };
    let written = bench.run(
        program().expect("it composes"),
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&x),
            bytemuck::cast_slice(&poison(ROWS * y_pitch)),
        ],
        workgroups(&params, ROWS as u32),
    );
    let what = format!("silu_mul {width} wide, gates of {size:e}");
    for (got, expected) in inside(&what, &written, y_pitch, width).into_iter().zip(expected) {
        check_close(&what, got, &expected);
    }
}

#[test]
fn gates_of_every_size() {
    let mut bench = Bench::with_default_limits();
    for width in [4, 252, 256, 260, 1536] {
        check(&mut bench, width, 4.0);
    }
    for size in [1e-20, 1e-3, 90.0, 1e4, 1e30] {
        check(&mut bench, 64, size);
    }
}
