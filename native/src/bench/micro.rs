//! `firstlight bench --micro`: where a step's time goes, kernel by kernel, beside what this adapter can do at best.
//!
//! Kernels run without engine and scheduler; the loop around them is measured by `pace`. Invariant: the rows of a table sum to
//! the step that stands under them; what the cuts between its kernels cost, or hide, is a row of its own.

use firstlight_engine::runner::{GpuRunner, StepProfile, StepShape};
use serde::Serialize;

use super::pace::{self, Pace};
use super::steps::{Opened, decode, fits, median, open};
use crate::cli::{BenchArgs, JsonTarget};
use crate::doctor::measures::Peaks;
use crate::executor::block_on_gpu;
use crate::failure::Failure;
use crate::terminal::write_line;

/// Runs the command.
///
/// # Errors
/// The model, the adapter, an adapter without a clock for its passes.
pub fn run(args: &BenchArgs, target: &JsonTarget) -> Result<(), Failure> {
    let Some(Opened { mut runner, limits, .. }) = open(&args.engine)? else { return Ok(()) };
    let handle = runner.device().handle().clone();
    let mut profiled = Vec::new();
    for shape in SHAPES.into_iter().filter(|shape| fits(shape, &limits)) {
        let mut profiles = Vec::new();
        for _ in 0..args.repeats * PROFILES_A_REPEAT {
            profiles.push(profile(&handle, &mut runner, shape)?);
        }
        profiled.push((shape, profiles));
    }
    let paces = pace::measure(&mut runner, &limits, args.repeats)?;
    let adapter = runner.device().facts().name.clone();
    let home = runner.choice().home;
    // Last: where there is no clock, nobody waits for them.
    let peaks = Peaks::measure(&runner.into_device(), home)?;
    let steps = profiled.iter().map(|(shape, profiles)| Table::of(*shape, profiles, &peaks)).collect();
    let result = MicroJson { schema: "firstlight.micro/1", adapter, peaks, steps, paces };
    super::save(target, &result)?;
    if *target == JsonTarget::Stdout {
        return Ok(());
    }
    result.steps.iter().try_for_each(|table| write_line(&table.to_string()))?;
    write_line(&pace::heading())?;
    result.paces.iter().try_for_each(|pace| write_line(&pace.to_string()))
}

/// Takes a step and times it.
pub(super) fn profile(
    handle: &wgpu::Device,
    runner: &mut GpuRunner,
    shape: StepShape,
) -> Result<StepProfile, Failure> {
    block_on_gpu(handle, runner.profile_step(shape))?.ok_or_else(|| {
        Failure::failed(
            "this adapter has no timestamps, so its kernels cannot be timed one by one; `firstlight doctor` measures \
             what it can do",
        )
    })
}

/// A step takes milliseconds: several of them are one repeat.
pub(super) const PROFILES_A_REPEAT: u32 = 5;

/// A token alone, at the beginning and far in; a batch of them; a prompt.
const SHAPES: [StepShape; 5] = [
    decode(1, 128),
    decode(1, 1024),
    decode(8, 128),
    StepShape { num_seqs: 1, tokens_per_seq: 64, context: 64 },
    StepShape { num_seqs: 1, tokens_per_seq: 64, context: 1024 },
];

/// The result as JSON.
#[derive(Debug, Serialize)]
struct MicroJson {
    schema: &'static str,
    adapter: String,
    peaks: Peaks,
    steps: Vec<Table>,
    paces: Vec<Pace>,
}

/// A kernel's line.
#[derive(Debug, Serialize)]
struct Row {
    kernel: String,
    dispatches: u32,
    ns: u64,
    share: f64,
    gflops: f64,
    share_of_peak: f64,
    gb_per_s: f64,
    share_of_bandwidth: f64,
}

/// A step's table.
#[derive(Debug, Serialize)]
struct Table {
    num_seqs: u32,
    tokens_per_seq: u32,
    context: u32,
    repeats: usize,
    /// The step as it runs, without cuts.
    whole_ns: u64,
    /// What the rows sum to.
    sum_ns: u64,
    kernels: Vec<Row>,
}

impl Table {
    /// The medians over `profiles`, kernel by kernel; the sum is theirs.
    fn of(shape: StepShape, profiles: &[StepProfile], peaks: &Peaks) -> Self {
        let Some(first) = profiles.first() else { unreachable!("a shape is profiled at least once") };
        let times: Vec<u64> = (0..first.kernels.len())
            .map(|idx| median(profiles.iter().filter_map(|p| p.kernels.get(idx)).map(|k| k.ns)))
            .collect();
        let sum: u64 = times.iter().sum();
        let whole = median(profiles.iter().map(|p| p.whole_ns));
        let per_second = |amount: u64, ns: u64| amount as f64 / ns.max(1) as f64;
        let mut kernels: Vec<Row> = (first.kernels.iter().zip(&times))
            .map(|(kernel, &ns)| {
                let (gflops, gb_per_s) = (per_second(2 * kernel.macs, ns), per_second(kernel.bytes, ns));
                Row {
                    kernel: kernel.kernel.clone(),
                    dispatches: kernel.dispatches,
                    ns,
                    share: per_second(ns, whole),
                    gflops,
                    share_of_peak: gflops / peaks.gflops,
                    gb_per_s,
                    share_of_bandwidth: gb_per_s / peaks.gb_per_s,
                }
            })
            .collect();
        kernels.sort_by_key(|row| std::cmp::Reverse(row.ns));
        Self {
            num_seqs: shape.num_seqs,
            tokens_per_seq: shape.tokens_per_seq,
            context: shape.context,
            repeats: profiles.len(),
            whole_ns: whole,
            sum_ns: sum,
            kernels,
        }
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.num_seqs * self.tokens_per_seq;
        let ms = |ns: u64| ns as f64 / 1e6;
        let per_second = f64::from(rows) / ms(self.whole_ns) * 1e3;
        let what = match (self.num_seqs, self.tokens_per_seq) {
            (1, 1) => "decode, one sequence".to_owned(),
            (n, 1) => format!("decode, {n} sequences"),
            (_, n) => format!("prefill of {n} tokens"),
        };
        writeln!(
            f,
            "{what}, context {}: {:.2} ms, {per_second:.0} tokens/s (median of {})",
            self.context,
            ms(self.whole_ns),
            self.repeats
        )?;
        let heading = ["kernel", "count", "ms", "share", "GFLOP/s", "of peak", "GB/s", "of bandwidth"];
        let [kernel, figures @ ..] = heading;
        // Names grow with what a kernel does beside its product.
        let wide = self.kernels.iter().map(|row| row.kernel.len()).fold(58, usize::max);
        write!(f, "  {kernel:<wide$}")?;
        figures.iter().try_for_each(|figure| {
            let width = if *figure == "of bandwidth" { 14 } else { 9 };
            write!(f, "{figure:>width$}")
        })?;
        writeln!(f)?;
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        for row in &self.kernels {
            let or_dash = |value: f64, text: String| if value > 0.0 { text } else { "-".to_owned() };
            writeln!(
                f,
                "  {:<wide$}{:>9}{:>9.3}{:>9}{:>9}{:>9}{:>9}{:>14}",
                row.kernel,
                row.dispatches,
                ms(row.ns),
                percent(row.share),
                or_dash(row.gflops, format!("{:.1}", row.gflops)),
                or_dash(row.gflops, percent(row.share_of_peak)),
                or_dash(row.gb_per_s, format!("{:.1}", row.gb_per_s)),
                or_dash(row.gb_per_s, percent(row.share_of_bandwidth)),
            )?;
        }
        let dispatches: u32 = self.kernels.iter().map(|row| row.dispatches).sum();
        let last = "cuts: passes for single dispatches, beside the step in one";
        let cuts = (self.whole_ns as f64 - self.sum_ns as f64) / 1e6;
        writeln!(f, "  {last:<wide$}{:>9}{cuts:>+9.3}{:>9}", "", percent(cuts / ms(self.whole_ns)))?;
        writeln!(f, "  {:<wide$}{dispatches:>9}{:>9.3}{:>9}", "the step", ms(self.whole_ns), percent(1.0))
    }
}
