//! The matrix kernels: every format, home, store and tile, at the edges of their tiles, and their shared order of
//! summation.

use firstlight_shaders::matmul::{Params, Store, cpu, cpu_silu, fused_column};
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::weights::{GROUP_COLUMNS, PackedShape, UNIT, pack};
use firstlight_shaders::{
    Activations, Form, Home, Program, WeightFormat, matmul_lanes, matmul_tiled, matvec_quads, matvec_split,
};

use firstlight_tests::TestRng;

use super::{Bench, POISON, check_close, error_of, floats, stored_rows};

/// One of them, with its choices.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Lanes(matmul_lanes::Variant),
    Split(matvec_split::Variant),
    Quads(matvec_quads::Variant),
    Tiled(matmul_tiled::Variant),
}

impl Kernel {
    fn parts(self) -> (Program, WeightFormat, Store, bool, u32) {
        match self {
            Self::Lanes(v) => (v.program().expect("it composes"), v.format, v.store, v.bias, v.tile_rows),
            Self::Split(v) => (v.program().expect("it composes"), v.format, v.store, v.bias, v.tile_rows),
            Self::Quads(v) => (v.program().expect("it composes"), v.format, v.store, v.bias, v.tile_rows),
            Self::Tiled(v) => (v.program().expect("it composes"), v.format, v.store, v.bias, v.tile_rows),
        }
    }

    fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        match self {
            Self::Lanes(v) => v.workgroups(rows, groups),
            Self::Split(v) => v.workgroups(rows, groups),
            Self::Quads(v) => v.workgroups(rows, groups),
            Self::Tiled(v) => v.workgroups(rows, groups),
        }
    }

    fn iterations(self) -> u32 {
        match self {
            Self::Lanes(v) => v.iterations(),
            Self::Split(v) => v.iterations(),
            Self::Quads(v) => v.iterations(),
            Self::Tiled(v) => v.iterations(),
        }
    }

    /// The kernel for this length of K.
    fn for_k(self, k: u32) -> Self {
        let units = k.div_ceil(UNIT);
        match self {
            Self::Lanes(v) => Self::Lanes(matmul_lanes::Variant { units, ..v }),
            Self::Split(v) => Self::Split(matvec_split::Variant { units, ..v }),
            Self::Quads(v) => Self::Quads(matvec_quads::Variant { units, ..v }),
            Self::Tiled(v) => Self::Tiled(matmul_tiled::Variant { units, ..v }),
        }
    }
}

fn lanes(format: WeightFormat, home: Home, store: Store, tile_rows: u32, subgroups: bool) -> Kernel {
    // x lives where the weights do: both homes are seen.
    let x = Form { home, activations: Activations::F32 };
    Kernel::Lanes(matmul_lanes::Variant {
        format,
        units: 1,
        home,
        x,
        written: Form::PLAIN,
        norm_width: 0,
        store,
        bias: false,
        tile_rows,
        subgroups,
        // Without subgroups both ways are seen.
        quads: !subgroups && home == Home::Texture,
    })
}

fn split(format: WeightFormat, store: Store, tile_rows: u32) -> Kernel {
    Kernel::Split(matvec_split::Variant { format, units: 1, store, bias: false, tile_rows })
}

fn quads(format: WeightFormat, store: Store, tile_rows: u32, lanes: u32) -> Kernel {
    Kernel::Quads(matvec_quads::Variant { format, units: 1, store, bias: false, tile_rows, lanes })
}

/// A tile of `tile_rows` rows, `thread_rows` a thread.
fn tiled_by(format: WeightFormat, store: Store, tile_rows: u32, thread_rows: u32) -> Kernel {
    let arithmetic = Arithmetic::F32;
    Kernel::Tiled(matmul_tiled::Variant {
        format,
        units: 1,
        store,
        bias: false,
        tile_rows,
        thread_rows,
        arithmetic,
    })
}

fn tiled(format: WeightFormat, store: Store, tile_rows: u32) -> Kernel {
    tiled_by(format, store, tile_rows, tile_rows / 16)
}

/// The same tiles in half precision, 8 lines of threads.
fn tiled_in_f16(format: WeightFormat, store: Store, tile_rows: u32) -> Kernel {
    match tiled_by(format, store, tile_rows, tile_rows / 8) {
        Kernel::Tiled(v) => Kernel::Tiled(matmul_tiled::Variant { arithmetic: Arithmetic::F16, ..v }),
        other => other,
    }
}

fn biased(kernel: Kernel) -> Kernel {
    match kernel {
        Kernel::Lanes(v) => Kernel::Lanes(matmul_lanes::Variant { bias: true, ..v }),
        Kernel::Split(v) => Kernel::Split(matvec_split::Variant { bias: true, ..v }),
        Kernel::Quads(v) => Kernel::Quads(matvec_quads::Variant { bias: true, ..v }),
        Kernel::Tiled(v) => Kernel::Tiled(matmul_tiled::Variant { bias: true, ..v }),
    }
}

/// Operands of one product, and what the kernels are to read.
struct Case {
    rows: u32,
    n: u32,
    k: u32,
    x: Vec<f32>,
    w: Vec<f32>,
    shape: PackedShape,
    data: Vec<u8>,
    scales: Vec<u8>,
}

impl Case {
    fn new(format: WeightFormat, rows: u32, n: u32, k: u32) -> Self {
        let mut random = TestRng::new(u64::from(rows) << 40 | u64::from(n) << 16 | u64::from(k));
        let stored = stored_rows(format, n, k, &mut random);
        let row_bytes = format.row_bytes(k);
        let row = |i: u32| stored.get(i as usize * row_bytes..(i as usize + 1) * row_bytes);
        let shape = PackedShape::new(format, n, k);
        let (data, mut scales) = pack(shape, k, row);
        // A binding of formats without scales still has to be something.
        scales.resize(scales.len().max(128), 0);
        let w = stored.chunks(row_bytes).flat_map(|row| format.dequantise_row(row, k)).collect();
        Self { rows, n, k, x: floats(&mut random, (rows * k) as usize), w, shape, data, scales }
    }

    /// x with its rows padded along K, and to a multiple of `tile_rows`: finite, and not zero, where nothing counts.
    fn padded_x(&self, tile_rows: u32) -> Vec<f32> {
        let pitch = (self.shape.units * UNIT) as usize;
        let mut padded = vec![3.5; self.rows.next_multiple_of(tile_rows) as usize * pitch];
        for (row, x) in self.x.chunks(self.k as usize).enumerate() {
            padded[row * pitch..row * pitch + x.len()].copy_from_slice(x);
        }
        padded
    }

    /// Runs `kernel` into columns of a wider y and returns y, `[rows][width]`; what lies beside is checked here.
    fn run(&self, bench: &mut Bench, kernel: Kernel) -> (Vec<f32>, usize) {
        let kernel = kernel.for_k(self.k);
        let (program, _, store, bias, tile_rows) = kernel.parts();
        let padded_n = self.shape.groups * GROUP_COLUMNS;
        let width = if store == Store::Silu { padded_n / 2 } else { padded_n } as usize;
        let (margin, pitch) = (4, (width + 8).next_multiple_of(4));
        let params = Params {
            x_pitch: self.shape.units * UNIT / 4,
            y_pitch: pitch as u32,
            y_column: margin as u32,
            num_groups: self.shape.groups,
            z_pitch: 0,
            eps: 0.0,
        };
        let rows = self.rows.next_multiple_of(tile_rows) as usize;
        let mut y = vec![f32::from_bits(POISON); rows * pitch];
        if store == Store::Add {
            for row in y.chunks_mut(pitch) {
                row[margin..margin + width].fill(0.5);
            }
        }
        let biases: Vec<f32> = if bias { (0..padded_n).map(bias_of).collect() } else { vec![f32::NAN; 4] };
        let x = self.padded_x(tile_rows);
        let name = program.name.clone();
        let written = bench.run(
            program,
            &[
                bytemuck::bytes_of(&params),
                bytemuck::cast_slice(&x),
                &self.data,
                &self.scales,
                bytemuck::cast_slice(&biases),
                bytemuck::cast_slice(&y),
            ],
            kernel.workgroups(self.rows, self.shape.groups),
        );
        let mut inside = Vec::new();
        for row in bytemuck::cast_slice::<u8, f32>(&written).chunks(pitch) {
            let beside = row[..margin].iter().chain(&row[margin + width..]);
            assert!(beside.clone().all(|v| v.to_bits() == POISON), "{name} writes beside its columns");
            inside.extend_from_slice(&row[margin..margin + width]);
        }
        inside.truncate(self.rows as usize * width);
        (inside, width)
    }

    /// What `kernel` should give, `[rows][width]`: columns past n hold what zero weights give.
    fn expected(&self, kernel: Kernel, width: usize) -> Vec<f64> {
        let (_, _, store, bias, _) = kernel.parts();
        let product = cpu(&self.x, &self.w, self.rows as usize, self.n as usize, self.k as usize);
        let at = |row: usize, column: u32| {
            let product =
                if column < self.n { product[row * self.n as usize + column as usize] } else { 0.0 };
            product + if bias { f64::from(bias_of(column)) } else { 0.0 }
        };
        let mut expected = Vec::with_capacity(self.rows as usize * width);
        for row in 0..self.rows as usize {
            expected.extend((0..width as u32).map(|i| match store {
                Store::Set => at(row, i),
                Store::Add | Store::AddNorm => 0.5 + at(row, i),
                Store::Silu => cpu_silu(at(row, fused_column(i, false)), at(row, fused_column(i, true))),
                Store::RopeKv(_) => unreachable!("rope_kv_write.rs has these"),
            }));
        }
        expected
    }
}

fn bias_of(column: u32) -> f32 {
    (column % 17) as f32 * 0.25 - 2.0
}

fn check(bench: &mut Bench, kernel: Kernel, rows: u32, n: u32, k: u32) {
    let (program, format, ..) = kernel.for_k(k).parts();
    let case = Case::new(format, rows, n, k);
    let (got, width) = case.run(bench, kernel);
    check_close(&format!("{} {rows}x{n}x{k}", program.name), &got, &case.expected(kernel, width));
}

/// Columns at the edges of a group and of a workgroup, K at the edges of a unit.
const SHAPES: [(u32, u32); 5] = [(1, 64), (31, 96), (32, 32), (65, 64), (130, 32)];
/// Longer K: segments that are full, short and empty. Each is a pipeline more, so two formats have one each.
const LONG_SHAPES: [(WeightFormat, u32, u32); 2] =
    [(WeightFormat::F32, 33, 576), (WeightFormat::Q8_0, 64, 1536)];

/// Every shape, with as many rows as `tile_rows` makes interesting.
fn sweep(bench: &mut Bench, kernel: Kernel) {
    let (_, format, _, _, tile) = kernel.parts();
    for ((n, k), rows) in SHAPES.into_iter().zip([1, tile - tile / 2, tile, tile + 1, 2 * tile]) {
        check(bench, kernel, rows, n, k);
    }
    for (_, n, k) in LONG_SHAPES.into_iter().filter(|&(long, ..)| long == format) {
        check(bench, kernel, tile, n, k);
    }
    if !format.is_blocked() {
        check(bench, kernel, tile, 33, 8);
    }
}

#[test]
fn lanes_in_textures_with_subgroups() {
    let mut bench = Bench::new();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([1, 4, 2, 4, 8, 1]) {
        sweep(&mut bench, lanes(format, Home::Texture, Store::Set, tile, true));
    }
}

#[test]
fn lanes_in_buffers_without_subgroups() {
    let mut bench = Bench::with_default_limits();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([2, 1, 4, 1, 1, 4]) {
        sweep(&mut bench, lanes(format, Home::Buffer, Store::Set, tile, false));
    }
}

#[test]
fn lanes_with_every_store() {
    let mut bench = Bench::new();
    let (q4, q8) = (WeightFormat::Q4_1, WeightFormat::Q8_0);
    sweep(&mut bench, biased(lanes(q4, Home::Texture, Store::Add, 1, true)));
    sweep(&mut bench, biased(lanes(q8, Home::Texture, Store::Silu, 2, true)));
    sweep(&mut bench, lanes(WeightFormat::F16, Home::Buffer, Store::Silu, 1, true));
    sweep(&mut bench, lanes(q8, Home::Texture, Store::Add, 2, false));
}

#[test]
fn split_in_every_format() {
    let mut bench = Bench::with_default_limits();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([1, 2, 1, 4, 2, 1]) {
        sweep(&mut bench, split(format, Store::Set, tile));
    }
}

#[test]
fn tiled_in_every_format() {
    let mut bench = Bench::with_default_limits();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([32, 64, 32, 64, 32, 32]) {
        sweep(&mut bench, tiled(format, Store::Set, tile));
    }
}

#[test]
fn quads_in_every_format() {
    let mut bench = Bench::with_default_limits();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([1, 2, 1, 4, 2, 1]) {
        sweep(&mut bench, quads(format, Store::Set, tile, 0));
    }
}

#[test]
fn tiled_with_more_rows_a_thread() {
    let mut bench = Bench::with_default_limits();
    for (format, tile) in WeightFormat::ALL.into_iter().zip([32, 32, 64, 32, 64, 32]) {
        sweep(&mut bench, tiled_by(format, Store::Set, tile, tile / 8));
    }
}

/// Half precision has 11 bits: products of numbers that are rounded to them, 32 of them added up in them.
#[test]
fn tiled_in_f16_loses_what_half_precision_loses() {
    let mut bench = Bench::new();
    let mut check = |kernel: Kernel, rows, n, k| {
        let (program, format, ..) = kernel.for_k(k).parts();
        let case = Case::new(format, rows, n, k);
        let (got, width) = case.run(&mut bench, kernel);
        let error = error_of(&program.name, &got, &case.expected(kernel, width));
        println!("{} {rows}x{n}x{k}: NMSE {error:.1e}", program.name);
        assert!((1e-9..1e-5).contains(&error), "{} {rows}x{n}x{k}: NMSE {error:e}", program.name);
    };
    for (format, tile) in WeightFormat::ALL.into_iter().zip([32, 64, 32, 64, 32, 32]) {
        for (n, k, rows) in [(1, 64, 1), (31, 64, tile - 1), (65, 64, tile + 1)] {
            check(tiled_in_f16(format, Store::Set, tile), rows, n, k);
        }
    }
    check(tiled_in_f16(WeightFormat::Q4_1, Store::Set, 32), 64, 130, 576);
    check(biased(tiled_in_f16(WeightFormat::Q8_0, Store::Silu, 32)), 33, 64, 96);
    check(biased(tiled_in_f16(WeightFormat::Q4_1, Store::Add, 64)), 65, 33, 64);
}

#[test]
fn x_beyond_half_precision_stays_finite_in_f16() {
    let mut bench = Bench::new();
    let mut case = Case::new(WeightFormat::Q4_1, 3, 32, 64);
    // Beside weights of about 0.1 the product is one that a half can be.
    case.x[5] = 1e5;
    case.x[70] = -1e5;
    let (got, _) = case.run(&mut bench, tiled_in_f16(WeightFormat::Q4_1, Store::Set, 32));
    assert!(got.iter().all(|y| y.is_finite()), "{got:?}");
}

#[test]
fn gpu_kernels_with_every_store() {
    let mut bench = Bench::with_default_limits();
    let (q4, q8) = (WeightFormat::Q4_1, WeightFormat::Q8_0);
    sweep(&mut bench, biased(quads(q8, Store::Silu, 1, 0)));
    sweep(&mut bench, biased(quads(q4, Store::Add, 4, 0)));
    sweep(&mut bench, biased(split(q8, Store::Add, 1)));
    sweep(&mut bench, biased(split(q4, Store::Silu, 2)));
    sweep(&mut bench, biased(tiled(q8, Store::Silu, 32)));
    sweep(&mut bench, biased(tiled(q4, Store::Add, 64)));
}

/// Rows of the same x, alone or among others, from every kernel of a family: the same bits.
fn check_same_bits(format: WeightFormat, kernels: &[Kernel]) {
    let mut bench = Bench::new();
    // 11 units: segments of 2, one of 1, and empty ones.
    let case = Case::new(format, 9, 64, 11 * UNIT);
    let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let expected = bits(case.run(&mut bench, kernels[0]).0);
    for &kernel in &kernels[1..] {
        let got = bits(case.run(&mut bench, kernel).0);
        assert_eq!(got, expected, "{} and {}", kernels[0].parts().0.name, kernel.parts().0.name);
    }
}

#[test]
fn gpu_kernels_give_the_same_bits() {
    for format in [WeightFormat::F32, WeightFormat::Q8_0, WeightFormat::Q4_1] {
        let tiles = [1, 8].map(|tile| split(format, Store::Set, tile));
        check_same_bits(format, &[tiles[0], tiles[1], tiled(format, Store::Set, 32)]);
    }
    // What this adapter's subgroups hold for certain, and no subgroups.
    let sure = Bench::new().device.facts().subgroup_min_size;
    for format in [WeightFormat::F16, WeightFormat::Q4_1] {
        let quads = |tile, lanes| quads(format, Store::Set, tile, lanes);
        check_same_bits(
            format,
            &[
                split(format, Store::Set, 1),
                quads(1, 0),
                quads(1, sure),
                quads(4, sure),
                tiled_by(format, Store::Set, 32, 4),
                tiled_by(format, Store::Set, 64, 8),
            ],
        );
    }
    let format = WeightFormat::Q4_0;
    check_same_bits(
        format,
        &[split(format, Store::Set, 2), split(format, Store::Set, 4), tiled(format, Store::Set, 64)],
    );
}

#[test]
fn lanes_give_the_same_bits_in_every_tile_and_home() {
    let format = WeightFormat::Q4_1;
    let at = |home, tile, subgroups| lanes(format, home, Store::Set, tile, subgroups);
    check_same_bits(format, &[1, 2, 4, 8].map(|tile| at(Home::Texture, tile, true)));
    check_same_bits(format, &[at(Home::Texture, 1, true), at(Home::Buffer, 4, true)]);
    check_same_bits(format, &[at(Home::Texture, 1, false), at(Home::Buffer, 4, false)]);
}

/// A vocabulary's worth of columns: more groups than one row of a weight texture holds lines.
#[test]
fn columns_beyond_65536() {
    let mut bench = Bench::new();
    let (q8, q4) = (WeightFormat::Q8_0, WeightFormat::Q4_0);
    check(&mut bench, lanes(q8, Home::Texture, Store::Set, 1, true), 2, 151_936, 64);
    check(&mut bench, split(q4, Store::Set, 1), 2, 151_936, 64);
    check(&mut bench, quads(q4, Store::Set, 1, 0), 2, 151_936, 64);
    check(&mut bench, tiled(q8, Store::Set, 32), 1, 65_537, 32);
}

/// Mesa 22.3.6 ends all loops of an invocation after 65,535 iterations, without a word.
#[test]
fn loops_stay_below_the_drivers_limit() {
    let format = WeightFormat::Q4_0;
    let kernels = [
        lanes(format, Home::Texture, Store::Set, 8, true),
        split(format, Store::Set, 1),
        tiled(format, Store::Set, 32),
        quads(format, Store::Set, 1, 0),
        tiled_in_f16(format, Store::Set, 32),
    ];
    // Ten times the widest layer that is known, 53,248 in Llama 3.1 405B.
    for kernel in kernels.map(|kernel| kernel.for_k(10 * 53_248)) {
        assert!(kernel.iterations() < 60_000, "{kernel:?}: {}", kernel.iterations());
    }
    let mut bench = Bench::new();
    check(&mut bench, kernels[0], 1, 32, 10 * 53_248);
    check(&mut bench, kernels[2], 1, 32, 53_248);
}
