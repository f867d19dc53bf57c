//! How fast the adapter is, and which of its two rates a stage came closer to.
//!
//! Measured once, before the engine takes the device. Invariant: a bound is stated with the figures that it follows from.

use firstlight_engine::gpu::{Device, KernelChoice};
use serde::Serialize;

use crate::doctor::measures::Peaks;
use crate::failure::Failure;

/// What the adapter can do at most, as `firstlight doctor` measures it: medians, because a run on a busy machine may come
/// out too fast as well as too slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Memory bandwidth in GB/s.
    pub gigabytes: f64,
    /// f32 arithmetic in GFLOP/s.
    pub gigaflops: f64,
}

/// What a stage moved and computed in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read and written.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
    /// Nanoseconds that it took.
    pub ns: u64,
}

/// Below this share of both rates neither of them is what holds a stage up.
const OVERHEAD: f64 = 0.1;

impl Rates {
    /// Measures the adapter that `device` is of.
    ///
    /// # Errors
    /// Memory, a kernel that does not compile, a lost device.
    pub fn measure(device: &Device) -> Result<Self, Failure> {
        let peaks = Peaks::measure(device, KernelChoice::for_adapter(device.facts()).home)?;
        Ok(Self { gigabytes: peaks.gb_per_s, gigaflops: peaks.gflops })
    }

    /// What bounds `work`, in words and figures; in at most 28 characters.
    pub fn bound(rates: Option<&Self>, work: Work) -> String {
        if work.ns == 0 {
            return "nothing to do".to_owned();
        }
        // Bytes a nanosecond are GB/s.
        let gigabytes = work.bytes as f64 / work.ns as f64;
        let gigaflops = work.operations as f64 / work.ns as f64;
        let Some(rates) = rates else {
            return format!(
                "{}, {}",
                figure(gigabytes, gigabytes, "B/s"),
                figure(gigaflops, gigaflops, "FLOP/s")
            );
        };
        let (memory, compute) = (gigabytes / rates.gigabytes, gigaflops / rates.gigaflops);
        let nearest = memory.max(compute);
        if nearest < OVERHEAD {
            format!("overhead: {:.0}% of peak rates", nearest * 100.0)
        } else if memory >= compute {
            of("memory", gigabytes, rates.gigabytes, "B/s")
        } else {
            of("compute", gigaflops, rates.gigaflops, "FLOP/s")
        }
    }
}

/// `name: reached of possible`, both in billions.
fn of(name: &str, reached: f64, possible: f64, unit: &str) -> String {
    // By its caches, or because the machine was busier while it was measured.
    if reached >= possible {
        return format!("{name}: {} (peak)", figure(reached, reached, unit));
    }
    let with_unit = figure(possible, possible, unit);
    let bare = figure(reached, possible, unit);
    let bare = bare.split(' ').next().unwrap_or_default();
    format!("{name}: {bare} of {with_unit}")
}

/// `value` billions of `unit`, with the prefix that suits `scale`; up to three digits, or all before the point.
fn figure(value: f64, scale: f64, unit: &str) -> String {
    let (value, prefix) = if scale >= 10_000.0 { (value / 1000.0, 'T') } else { (value, 'G') };
    if value < 10.0 { format!("{value:.1} {prefix}{unit}") } else { format!("{value:.0} {prefix}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rates: Option<Rates>, (bytes, operations, ns): (u64, u64, u64), expected: &str) {
        let text = Rates::bound(rates.as_ref(), Work { bytes, operations, ns });
        assert_eq!(text, expected);
        assert!(text.len() <= 28, "{text}");
    }

    #[test]
    fn the_rate_that_a_stage_comes_closer_to_bounds_it() {
        let cpu = Some(Rates { gigabytes: 6.3, gigaflops: 69.5 });
        let gpu = Some(Rates { gigabytes: 4000.0, gigaflops: 60_000.0 });
        check(cpu, (5_000_000, 9_000_000, 1_000_000), "memory: 5.0 of 6.3 GB/s");
        check(cpu, (500_000, 30_000_000, 1_000_000), "compute: 30 of 70 GFLOP/s");
        check(gpu, (3_500_000_000, 10, 1_000_000), "memory: 3500 of 4000 GB/s");
        check(gpu, (1, 55_000_000_000, 1_000_000), "compute: 55 of 60 TFLOP/s");
        check(cpu, (5000, 9000, 1_000_000), "overhead: 0% of peak rates");
        check(cpu, (7_000_000, 9_000_000, 1_000_000), "memory: 7.0 GB/s (peak)");
        check(cpu, (1, 102_000_000, 1_000_000), "compute: 102 GFLOP/s (peak)");
        check(None, (5_000_000, 12_000_000, 1_000_000), "5.0 GB/s, 12 GFLOP/s");
        check(cpu, (5, 5, 0), "nothing to do");
    }
}
