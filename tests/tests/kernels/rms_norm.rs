//! The norm with and without subgroups, of all rows and of chosen ones.

use firstlight_shaders::Home;
use firstlight_shaders::rms_norm::{Params, cpu, iterations, program, workgroups};
use firstlight_tests::TestRng;

use super::{Bench, bits, check_close, floats, inside, poison};

const EPS: f32 = 1e-5;
/// Sizes of the numbers in a row. The squares of the smallest vanish, those of the largest still add up.
const SIZES: [f32; 6] = [1.0, 1e-30, 1e-3, 1e17, 30.0, 0.0];

/// The norms of rows `chosen` of x, or of all.
fn run(
    bench: &mut Bench,
    x: &[Vec<f32>],
    gamma: &[f32],
    chosen: Option<&[u32]>,
    subgroups: bool,
) -> Vec<Vec<f32>> {
    let width = gamma.len();
    let (x_pitch, y_pitch) = (width + 4, width + 8);
    // What lies between rows is no number.
    let mut padded = vec![f32::NAN; x.len() * x_pitch];
    for (to, row) in padded.chunks_mut(x_pitch).zip(x) {
        to[..width].copy_from_slice(row);
    }
    let rows = chosen.map_or(x.len(), <[u32]>::len);
    let params = Params { x_pitch: x_pitch as u32 / 4, y_pitch: y_pitch as u32 / 4, eps: EPS };
    // The homes that adapters get.
    let y_home = if subgroups { Home::Texture } else { Home::Buffer };
    let program = program(width as u32 / 4, chosen.is_some(), y_home, subgroups).expect("it composes");
    let what = program.name.clone();
    let written = bench.run(
        program,
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&padded),
            bytemuck::cast_slice(gamma),
            bytemuck::cast_slice(chosen.unwrap_or(&[u32::MAX])),
            // A row more than is asked for.
            bytemuck::cast_slice(&poison((rows + 1) * y_pitch)),
        ],
        workgroups(rows as u32),
    );
    let (asked, beyond) = written.split_at(rows * y_pitch * 4);
    inside(&what, beyond, y_pitch, 0);
    inside(&what, asked, y_pitch, width).into_iter().map(<[f32]>::to_vec).collect()
}

fn check(bench: &mut Bench, width: usize, subgroups: bool) {
    let mut random = TestRng::new(width as u64);
    let gamma = floats(&mut random, width);
    let x: Vec<Vec<f32>> =
        SIZES.iter().map(|size| floats(&mut random, width).iter().map(|v| v * size).collect()).collect();
    let all = run(bench, &x, &gamma, None, subgroups);
    for ((row, got), size) in x.iter().zip(&all).zip(SIZES) {
        let what = format!("norm of {width} numbers of {size:e}, subgroups: {subgroups}");
        check_close(&what, got, &cpu(row, &gamma, EPS));
    }
    // Alone, repeated and in another order, a row has the same bits.
    for chosen in [vec![4], vec![5, 0, 3, 3, 1, 0, 2]] {
        let got = run(bench, &x, &gamma, Some(&chosen), subgroups);
        for (row, got) in chosen.into_iter().zip(got) {
            assert_eq!(bits(&got), bits(&all[row as usize]), "row {row} of {width}, subgroups: {subgroups}");
        }
    }
}

#[test]
fn rows_over_lanes() {
    let mut bench = Bench::new();
    for width in [4, 28, 32, 36, 576] {
        check(&mut bench, width, true);
    }
}

#[test]
fn rows_over_a_workgroup() {
    let mut bench = Bench::with_default_limits();
    for width in [4, 252, 256, 260, 576] {
        check(&mut bench, width, false);
    }
}

/// Mesa 22.3.6 ends all loops of an invocation after 65,535 iterations, without a word.
#[test]
fn loops_stay_below_the_drivers_limit() {
    // Ten times the widest residual stream that is known, 16,384 in Llama 3.1 405B.
    for subgroups in [false, true] {
        assert!(iterations(10 * 16_384 / 4, subgroups) < 60_000);
    }
}
