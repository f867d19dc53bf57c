//! Kernels on a real driver against their CPU twins: outputs poisoned beforehand, finite first, then the error.

mod matmul;
mod sample;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelCache, Probe};
use firstlight_shaders::Program;
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
        let probe = block_on(&self.device, Probe::new(&self.device, &mut self.cache, program, contents));
        let probe = probe.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut written = block_on(&self.device, probe.run(&self.device, grid, 1))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(written.len(), 1, "{name} writes one binding");
        written.remove(0)
    }
}

/// xorshift64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// What an output holds before a kernel runs: a NaN that no arithmetic makes.
const POISON: u32 = 0xffbd_5bad;

/// Holds `got` against `expected`: every number finite, then the normalised mean squared error.
fn check_close(what: &str, got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let (mut error, mut power) = (0.0, 0.0);
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        assert!(g.is_finite(), "{what}: number {i} is {g} ({:#x}), not {e}", g.to_bits());
        error += (f64::from(g) - e).powi(2);
        power += e * e;
    }
    let nmse = error / power.max(f64::MIN_POSITIVE);
    assert!(nmse <= 1e-10, "{what}: NMSE {nmse:e}");
}
