//! The embedding's rows in every format and home, whole and in pieces.

use std::ops::Range;

use firstlight_shaders::embed::{Params, SAMPLED, cpu, program, workgroups};
use firstlight_shaders::weights::{PackedShape, UNIT, pack};
use firstlight_shaders::{Home, WeightFormat};
use firstlight_tests::TestRng;

use super::{Bench, check_close, inside, is_untouched, poison, stored_rows};

const VOCAB: u32 = 77;
/// The edges of groups of 32, repetitions, no order.
const TOKENS: [u32; 11] = [76, 0, 31, 32, 33, 63, 64, 0, 76, 1, 31];

struct Table {
    format: WeightFormat,
    width: u32,
    stored: Vec<u8>,
}

impl Table {
    fn new(format: WeightFormat, width: u32) -> Self {
        let mut random = TestRng::new(u64::from(width));
        Self { format, width, stored: stored_rows(format, VOCAB, width, &mut random) }
    }

    fn row(&self, token: u32) -> Option<&[u8]> {
        let bytes = self.format.row_bytes(self.width);
        self.stored.get(token as usize * bytes..(token as usize + 1) * bytes)
    }

    fn expected(&self) -> Vec<f64> {
        let rows = (0..VOCAB).filter_map(|token| self.row(token));
        let table: Vec<f32> = rows.flat_map(|row| self.format.dequantise_row(row, self.width)).collect();
        cpu(&table, &TOKENS, self.width as usize).into_iter().map(f64::from).collect()
    }

    /// Runs the piece that holds `tokens`: rows of these are the table's, all others are as before.
    fn check_piece(&self, bench: &mut Bench, home: Home, tokens: Range<u32>) {
        let shape = PackedShape::new(self.format, tokens.len() as u32, self.width);
        let (data, mut scales) =
            pack(shape, self.width, |i| tokens.clone().nth(i as usize).and_then(|token| self.row(token)));
        // A binding of formats without scales still has to be something.
        scales.resize(scales.len().max(128), 0);
        let pitch = self.width.next_multiple_of(UNIT) as usize + 4;
        let params = Params {
            y_pitch: pitch as u32 / 4,
            width_vec4s: self.width / 4,
            num_units: shape.units,
            first_token: tokens.start,
            num_tokens: tokens.len() as u32,
        };
        // Every third token goes by its name.
        let named = |idx: usize| if idx % 3 == 1 { SAMPLED + idx as u32 } else { TOKENS[idx] };
        let rows: [_; TOKENS.len()] = std::array::from_fn(|idx| [named(idx), u32::MAX, u32::MAX, u32::MAX]);
        let program = program(self.format, home).expect("it composes");
        let what = format!("{} {} wide, tokens {tokens:?}", program.name, self.width);
        let written = bench.run(
            program,
            &[
                bytemuck::bytes_of(&params),
                bytemuck::cast_slice(&rows),
                &data,
                &scales,
                bytemuck::cast_slice(&TOKENS),
                bytemuck::cast_slice(&poison(TOKENS.len() * pitch)),
            ],
            workgroups(&params, TOKENS.len() as u32),
        );
        let expected = self.expected();
        let width = self.width as usize;
        let got = inside(&what, &written, pitch, width);
        for ((token, got), expected) in TOKENS.iter().zip(got).zip(expected.chunks(width)) {
            if tokens.contains(token) {
                check_close(&what, got, expected);
            } else {
                assert!(is_untouched(got), "{what}: the row of token {token}");
            }
        }
    }
}

fn check(bench: &mut Bench, home: Home) {
    for format in WeightFormat::ALL {
        // Half a unit, whole units, more than one workgroup; for plain formats, a part of a block too.
        for width in [32, 64, 96, 160].into_iter().chain((!format.is_blocked()).then_some(8)) {
            Table::new(format, width).check_piece(bench, home, 0..VOCAB);
        }
        for tokens in [0..32, 32..64, 64..VOCAB] {
            Table::new(format, 96).check_piece(bench, home, tokens);
        }
    }
}

#[test]
fn rows_from_buffers() {
    check(&mut Bench::with_default_limits(), Home::Buffer);
}

#[test]
fn rows_from_textures() {
    check(&mut Bench::new(), Home::Texture);
}
