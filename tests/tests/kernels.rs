//! Kernels on a real driver against their CPU twins: outputs poisoned beforehand, finite first, then the error.

mod attention;
mod embed;
mod matmul;
mod rms_norm;
mod rope_kv_write;
mod sample;
mod silu_mul;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelCache, Probe};
use firstlight_shaders::{Program, WeightFormat};
use firstlight_tests::TestRng;
use firstlight_tests::gpu::{block_on, open};

/// A device and its pipelines: one a test.
struct Bench {
    device: Device,
    cache: KernelCache,
}

impl Bench {
    fn new() -> Self {
        Self { device: open(DeviceOptions::default()), cache: KernelCache::default() }
    }

    fn with_default_limits() -> Self {
        Self { device: open(DeviceOptions { default_limits: true }), cache: KernelCache::default() }
    }

    /// Binds `contents` to `program`, dispatches once and returns what the only written binding then holds.
    fn run(&mut self, program: Program, contents: &[&[u8]], grid: [u32; 3]) -> Vec<u8> {
        let name = program.name.clone();
        let mut written = self.run_all(program, contents, grid);
        assert_eq!(written.len(), 1, "{name} writes one binding");
        written.remove(0)
    }

    /// The same for a kernel that writes several: what each of them then holds.
    fn run_all(&mut self, program: Program, contents: &[&[u8]], grid: [u32; 3]) -> Vec<Vec<u8>> {
        let name = program.name.clone();
        let probe = block_on(&self.device, Probe::new(&self.device, &mut self.cache, program, contents));
        let probe = probe.unwrap_or_else(|e| panic!("{name}: {e}"));
        block_on(&self.device, probe.run(&self.device, grid, 1)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// Between -1 and 1.
fn float(rng: &mut TestRng) -> f32 {
    (rng.next_u64() >> 40) as f32 / 8_388_608.0 - 1.0
}

fn floats(rng: &mut TestRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| float(rng)).collect()
}

/// What an output holds before a kernel runs: a NaN that no arithmetic makes.
const POISON: u32 = 0xffbd_5bad;

fn poison(count: usize) -> Vec<f32> {
    vec![f32::from_bits(POISON); count]
}

fn is_untouched(numbers: &[f32]) -> bool {
    numbers.iter().all(|v| v.to_bits() == POISON)
}

/// The first `width` numbers of every row of an output; the rest of a row must be poison still.
fn inside<'a>(what: &str, written: &'a [u8], pitch: usize, width: usize) -> Vec<&'a [f32]> {
    let rows = bytemuck::cast_slice::<u8, f32>(written).chunks(pitch);
    rows.map(|row| {
        assert!(is_untouched(&row[width..]), "{what} writes beside its columns");
        &row[..width]
    })
    .collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|v| v.to_bits()).collect()
}

/// Holds `got` against `expected`: every number finite, then the normalised mean squared error.
fn check_close(what: &str, got: &[f32], expected: &[f64]) {
    let nmse = error_of(what, got, expected);
    assert!(nmse <= 1e-10, "{what}: NMSE {nmse:e}");
}

/// The normalised mean squared error of finite numbers.
fn error_of(what: &str, got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len(), "{what}");
    let (mut error, mut power) = (0.0, 0.0);
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        assert!(g.is_finite(), "{what}: number {i} is {g} ({:#x}), not {e}", g.to_bits());
        error += (f64::from(g) - e).powi(2);
        power += e * e;
    }
    error / power.max(f64::MIN_POSITIVE)
}

/// Stored rows with random weights of a sensible size.
fn stored_rows(format: WeightFormat, n: u32, k: u32, random: &mut TestRng) -> Vec<u8> {
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let count = n as usize * k as usize;
    match format {
        WeightFormat::F32 => floats(random, count).iter().flat_map(|x| x.to_le_bytes()).collect(),
        WeightFormat::F16 => floats(random, count).iter().flat_map(|&x| half(x)).collect(),
        WeightFormat::Bf16 => {
            floats(random, count).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
        }
        _ => {
            let mut bytes = Vec::new();
            for _ in 0..count / 32 {
                let block = bytes.len();
                bytes.extend((0..format.block_bytes()).map(|_| random.next_u64() as u8));
                bytes[block..block + 2].copy_from_slice(&half(0.01 + float(random).abs() * 0.01));
                if format == WeightFormat::Q4_1 {
                    bytes[block + 2..block + 4].copy_from_slice(&half(float(random) * 0.1));
                }
            }
            bytes
        }
    }
}
