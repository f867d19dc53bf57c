//! Every kernel of every choice that runs on this adapter, alone: its time, and its share of what the adapter can do.
//!
//! `cargo bench -p firstlight-tests --bench kernels [-- --quick] [-- WORD]` times those whose line has WORD in it. Times are of
//! the GPU's clock where there is one. A figure, no test: it never fails for being slow.

mod subjects;

use std::collections::HashSet;
use std::time::Instant;

use firstlight::doctor::measures;
use firstlight_engine::gpu::{AdapterFacts, Device, DeviceOptions, KernelCache, KernelChoice, Probe};
use firstlight_shaders::{Activations, Home, WeightFormat};
use firstlight_tests::gpu::{block_on, open};

use self::subjects::{Content, Subject};

/// How much is measured.
struct Plan {
    rows: &'static [u32],
    formats: &'static [WeightFormat],
    /// What one measurement should take.
    span_ns: u64,
    repeats: usize,
    /// Data of so many bytes lie behind one measurement, so that weights come from memory as they do in a model.
    cold_bytes: u64,
    filter: String,
}

const QUICK: Plan = Plan {
    rows: &[1, 8, 64],
    formats: &[WeightFormat::Q4_1],
    span_ns: 3_000_000,
    repeats: 3,
    cold_bytes: 8 << 20,
    filter: String::new(),
};

const WHOLE: Plan = Plan {
    rows: &[1, 2, 4, 8, 16, 64],
    formats: &WeightFormat::ALL,
    span_ns: 20_000_000,
    repeats: 7,
    cold_bytes: 64 << 20,
    filter: String::new(),
};

/// Dispatches of one pass, at most.
const MAX_DISPATCHES: u64 = 512;

/// What the adapter can do.
struct Peaks {
    gflops: f64,
    buffer_gb: f64,
    texture_gb: f64,
}

impl Peaks {
    fn measure(device: &Device, kernels: &mut KernelCache) -> Self {
        let bandwidth = |kernels: &mut KernelCache, home| {
            measures::bandwidth(device, kernels, home).expect("it is measured").median
        };
        let peaks = Self {
            buffer_gb: bandwidth(kernels, Home::Buffer),
            texture_gb: bandwidth(kernels, Home::Texture),
            gflops: measures::arithmetic(device, kernels).expect("it is measured").median,
        };
        println!(
            "peak: {:.1} GB/s from a buffer, {:.1} GB/s from a texture, {:.0} GFLOP/s f32",
            peaks.buffer_gb, peaks.texture_gb, peaks.gflops
        );
        peaks
    }

    fn gb(&self, home: Home) -> f64 {
        match home {
            Home::Buffer => self.buffer_gb,
            Home::Texture => self.texture_gb,
        }
    }
}

/// Nanoseconds of one dispatch: the median of several passes.
fn dispatch_ns(device: &Device, kernels: &mut KernelCache, subject: &Subject, plan: &Plan) -> u64 {
    let contents: Vec<Vec<u8>> = subject.contents.iter().map(Content::bytes).collect();
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let copies = match subject.cold_bytes {
        0 => 1,
        bytes => plan.cold_bytes.div_ceil(bytes).min(MAX_DISPATCHES),
    };
    let probe = |kernels: &mut KernelCache| {
        block_on(device, Probe::new(device, kernels, subject.program.clone(), &contents))
            .unwrap_or_else(|error| panic!("{}: {error}", subject.program.name))
    };
    let probes: Vec<Probe> = (0..copies).map(|_| probe(kernels)).collect();
    let run = |times: u64| -> u64 {
        let start = Instant::now();
        let on_gpu = block_on(device, Probe::time(device, &probes, subject.grid, times as u32))
            .unwrap_or_else(|error| panic!("{}: {error}", subject.program.name));
        on_gpu.unwrap_or_else(|| start.elapsed().as_nanos() as u64)
    };
    // The first run compiles; the next touches every copy.
    run(1);
    let once = run(copies).max(1) / copies;
    let times = (plan.span_ns / once.max(1)).clamp(1, MAX_DISPATCHES);
    let mut taken: Vec<u64> = (0..plan.repeats).map(|_| run(times) / times).collect();
    taken.sort_unstable();
    taken[taken.len() / 2]
}

fn line(subject: &Subject, ns: u64, peaks: &Peaks, home: Home) -> String {
    // Bytes a nanosecond are GB/s.
    let (gflops, gb) =
        (subject.operations as f64 / ns.max(1) as f64, subject.bytes as f64 / ns.max(1) as f64);
    let arithmetic = match subject.operations {
        0 => format!("{:>9}{:>8}", "-", "-"),
        _ => format!("{gflops:>9.1}{:>7.0}%", 100.0 * gflops / peaks.gflops),
    };
    format!(
        "  {:<28}{:>5}{:>11.1}{arithmetic}{gb:>9.1}{:>7.0}%  {}",
        subject.what,
        subject.rows,
        ns as f64 / 1e3,
        100.0 * gb / peaks.gb(home),
        subject.program.name
    )
}

/// Everything that a choice dispatches.
fn all_subjects(choice: KernelChoice, facts: &AdapterFacts, plan: &Plan) -> Vec<Subject> {
    let mut found = Vec::new();
    for &rows in plan.rows {
        for &format in plan.formats {
            if choice.activations.multiply(format) {
                // The head is timed in its own format, below.
                found.extend(subjects::products((choice, facts), format, rows).into_iter().skip(1));
            }
        }
    }
    let exact = KernelChoice { activations: Activations::F32, ..choice };
    for &rows in plan.rows.iter().filter(|&&rows| rows <= 8) {
        found.extend(subjects::products((exact, facts), WeightFormat::Q8_0, rows).into_iter().take(1));
        found.push(subjects::attention(choice, rows, false));
    }
    found.push(subjects::attention(choice, 64, true));
    for rows in [1, 64] {
        found.extend(subjects::rows_kernels((choice, facts), rows));
    }
    found
}

/// What the adapter may get; and, where there is time, what adapters of the other kind get.
fn choices(facts: &AdapterFacts, plan: &Plan) -> Vec<KernelChoice> {
    let mut choices = KernelChoice::candidates(facts);
    if plan.formats.len() > 1 {
        let other = AdapterFacts { is_cpu: !facts.is_cpu, ..facts.clone() };
        choices.extend(KernelChoice::candidates(&other));
    }
    choices
}

fn plan() -> Plan {
    // `--bench` is cargo's.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let base = if words.iter().any(|word| word == "--quick") { QUICK } else { WHOLE };
    let filter = words.into_iter().find(|word| !word.starts_with('-')).unwrap_or_default();
    Plan { filter, ..base }
}

fn main() {
    let plan = plan();
    let device = open(DeviceOptions::default());
    let facts = device.facts().clone();
    println!("{}, {}", facts.name, facts.driver);
    let mut kernels = KernelCache::default();
    let peaks = Peaks::measure(&device, &mut kernels);
    let mut seen = HashSet::new();
    for candidate in choices(&facts, &plan) {
        for activations in [Activations::F32, Activations::I8] {
            let choice = KernelChoice { activations, ..candidate };
            if choice.fits(&facts).is_err() {
                continue;
            }
            // One that an earlier choice has as well was timed there.
            let fresh: Vec<Subject> = (all_subjects(choice, &facts, &plan).into_iter())
                .filter(|subject| format!("{} {}", subject.what, subject.program.name).contains(&plan.filter))
                .filter(|subject| {
                    seen.insert((
                        subject.program.name.clone(),
                        subject.grid,
                        subject.what.clone(),
                        subject.rows,
                    ))
                })
                .collect();
            println!("\n{choice}: {} kernels of its own", fresh.len());
            println!(
                "  {:<28}{:>5}{:>11}{:>9}{:>8}{:>9}{:>8}",
                "", "rows", "us", "GFLOP/s", "of peak", "GB/s", "of peak"
            );
            for subject in fresh {
                let ns = dispatch_ns(&device, &mut kernels, &subject, &plan);
                println!("{}", line(&subject, ns, &peaks, choice.home));
            }
        }
    }
}
