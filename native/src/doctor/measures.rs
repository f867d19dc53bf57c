//! How fast an adapter is: memory, arithmetic, dispatches, read-back.
//!
//! Never part of serving. Invariant: what a run costs beside its dispatches is taken off by a run with one dispatch.

use std::time::Instant;

use firstlight_engine::gpu::{Device, KernelCache, Probe, ProbeError};
use firstlight_shaders::{Home, peak, silu_mul, stream};
use serde::Serialize;

use super::report::Measure;
use crate::executor::block_on_gpu;
use crate::failure::Failure;

/// How often each quantity is measured.
const REPEATS: usize = 7;
/// Seconds that the dispatches of one measurement should take: far above what a clock or a wait adds.
const SPAN: f64 = 0.05;
/// vec4s a thread of the bandwidth kernel: 64 MiB on CPUs, 128 MiB, the default limit of a binding, on GPUs.
const CPU_VEC4S: u32 = 64;
const GPU_VEC4S: u32 = 128;
/// Threads of the arithmetic kernel: all that a large GPU holds at once.
const PEAK_THREADS: u32 = 1 << 18;

/// What the adapter can do at best, by these kernels.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Peaks {
    /// f32 arithmetic.
    pub gflops: f64,
    /// Memory bandwidth.
    pub gb_per_s: f64,
}

impl Peaks {
    /// Memory where the weights live, at `home`.
    ///
    /// # Errors
    /// Memory, a kernel that does not compile, a lost device.
    pub fn measure(device: &Device, home: Home) -> Result<Self, Failure> {
        let mut kernels = KernelCache::default();
        let gb_per_s = bandwidth(device, &mut kernels, home)?.median;
        let gflops = arithmetic(device, &mut kernels)?.median;
        Ok(Self { gflops, gb_per_s })
    }

    /// The larger of each.
    pub fn or_better(self, other: Self) -> Self {
        Self { gflops: self.gflops.max(other.gflops), gb_per_s: self.gb_per_s.max(other.gb_per_s) }
    }
}

/// Measures everything; memory where weights live, at `home`.
///
/// # Errors
/// Memory, a kernel that does not compile, a lost device.
pub fn all(device: &Device, kernels: &mut KernelCache, home: Home) -> Result<Vec<Measure>, Failure> {
    Ok(vec![
        bandwidth(device, kernels, home)?,
        arithmetic(device, kernels)?,
        dispatches(device, kernels)?,
        read_back(device, kernels)?,
    ])
}

/// A kernel on its data, with the device's time for it.
struct Timed<'a> {
    device: &'a Device,
    probe: Probe,
    grid: [u32; 3],
}

impl Timed<'_> {
    /// Seconds of a run of `times` dispatches, with its read-back.
    fn run(&self, times: u32) -> Result<f64, ProbeError> {
        let start = Instant::now();
        block_on_gpu(self.device.handle(), self.probe.run(self.device, self.grid, times))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds of one dispatch, at least once and mostly several times over.
    fn dispatch_seconds(&self) -> Result<Vec<f64>, Failure> {
        // The first run compiles.
        self.run(1)?;
        let mut more = 1;
        while self.run(1 + more)? < SPAN && more < 1 << 12 {
            more *= 2;
        }
        // The quickest of several: on a busy machine a single one may take longer than the run that it is taken off from.
        let mut beside = f64::INFINITY;
        for _ in 0..REPEATS {
            beside = beside.min(self.run(1)?);
        }
        let one = || Ok((self.run(1 + more)? - beside) / f64::from(more));
        let seconds: Vec<f64> = (0..REPEATS).map(|_| one()).collect::<Result<_, ProbeError>>()?;
        let seconds: Vec<f64> = seconds.into_iter().filter(|&seconds| seconds > 0.0).collect();
        if seconds.is_empty() {
            return Err(Failure::failed(
                "the machine is too busy to measure the adapter: one dispatch took longer than many; end other programs and run again",
            ));
        }
        Ok(seconds)
    }
}

/// Memory bandwidth in GB/s, where weights live at `home`.
///
/// # Errors
/// As [`all`].
pub fn bandwidth(device: &Device, kernels: &mut KernelCache, home: Home) -> Result<Measure, Failure> {
    let vec4s = if device.facts().is_cpu { CPU_VEC4S } else { GPU_VEC4S };
    let bytes = stream::bytes(vec4s);
    let words = vec![1u8; bytes as usize];
    let sums = vec![0u8; stream::THREADS as usize * 4];
    let program = stream::program(vec4s, home).map_err(ProbeError::from)?;
    let probe = block_on_gpu(device.handle(), Probe::new(device, kernels, program, &[&words, &sums]))?;
    let seconds = Timed { device, probe, grid: stream::workgroups() }.dispatch_seconds()?;
    let what = format!("memory bandwidth, a kernel that reads a {} of {} MiB", home.name(), bytes >> 20);
    Ok(Measure::new(what, "GB/s", seconds.into_iter().map(|s| bytes as f64 / s / 1e9).collect()))
}

/// f32 arithmetic in GFLOP/s.
///
/// # Errors
/// As [`all`].
pub fn arithmetic(device: &Device, kernels: &mut KernelCache) -> Result<Measure, Failure> {
    let params = peak::Params { factor: 0.999, addend: 0.002 };
    let bytes: Vec<u8> = [params.factor, params.addend].into_iter().flat_map(f32::to_le_bytes).collect();
    let out = vec![0u8; PEAK_THREADS as usize * 4];
    let program = peak::program().map_err(ProbeError::from)?;
    let probe = block_on_gpu(device.handle(), Probe::new(device, kernels, program, &[&bytes, &out]))?;
    let seconds = Timed { device, probe, grid: peak::workgroups(PEAK_THREADS) }.dispatch_seconds()?;
    let operations = peak::operations(PEAK_THREADS) as f64;
    let what = "f32 arithmetic, a kernel of multiply-adds in registers (two operations each)".to_owned();
    Ok(Measure::new(what, "GFLOP/s", seconds.into_iter().map(|s| operations / s / 1e9).collect()))
}

/// A kernel that has nearly nothing to do.
fn tiny<'a>(device: &'a Device, kernels: &mut KernelCache) -> Result<Timed<'a>, Failure> {
    let params = silu_mul::Params { x_pitch: 8, up_vec4: 4, y_pitch: 4, width_vec4s: 4 };
    let words = [params.x_pitch, params.up_vec4, params.y_pitch, params.width_vec4s];
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let program = silu_mul::program().map_err(ProbeError::from)?;
    let contents: [&[u8]; 3] = [&bytes, &[0; 128], &[0; 64]];
    let probe = block_on_gpu(device.handle(), Probe::new(device, kernels, program, &contents))?;
    Ok(Timed { device, probe, grid: silu_mul::workgroups(&params, 1) })
}

/// One more dispatch in a pass, in microseconds.
///
/// # Errors
/// As [`all`].
pub fn dispatches(device: &Device, kernels: &mut KernelCache) -> Result<Measure, Failure> {
    let seconds = tiny(device, kernels)?.dispatch_seconds()?;
    let what = "one more dispatch in a pass, a kernel of one workgroup".to_owned();
    Ok(Measure::new(what, "us", seconds.into_iter().map(|s| s * 1e6).collect()))
}

fn read_back(device: &Device, kernels: &mut KernelCache) -> Result<Measure, Failure> {
    let timed = tiny(device, kernels)?;
    timed.run(1)?;
    let seconds: Result<Vec<f64>, ProbeError> = (0..8 * REPEATS).map(|_| timed.run(1)).collect();
    let what = "submit, one small dispatch, wait and read 64 bytes back, staging buffer included".to_owned();
    Ok(Measure::new(what, "us", seconds?.into_iter().map(|s| s * 1e6).collect()))
}
