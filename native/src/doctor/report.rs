//! What the doctor tells: plain records, each with its sentence and its JSON.
//!
//! Never measures or looks anything up.

use std::fmt::{Display, Formatter, Result};

use firstlight_engine::costs::StepCosts;
use firstlight_engine::gpu::{AdapterFacts, Checked, Trial};
use serde::Serialize;
use serde_json::Value;

use crate::bench::style::Style;

/// What one adapter says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdapterReport {
    /// What `--adapter` takes.
    pub index: usize,
    /// The adapter's name.
    pub name: String,
    /// Vulkan, Metal, Dx12.
    pub backend: String,
    /// What kind of device: discrete, integrated, CPU.
    pub kind: String,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of the largest storage binding.
    pub max_binding_bytes: u64,
    /// Texels of a texture's side.
    pub max_texture_side: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory_bytes: u32,
    /// Invocations of a workgroup.
    pub max_workgroup_invocations: u32,
    /// Workgroups in one dimension of a grid.
    pub max_workgroups: u32,
    /// Storage buffers of one stage.
    pub max_storage_buffers: u32,
    /// Lanes of a subgroup, least and most; `None` where there are no subgroups.
    pub subgroup_size: Option<(u32, u32)>,
    /// Half floats in shaders.
    pub shader_f16: bool,
    /// Timestamps on the GPU's clock.
    pub timestamps: bool,
}

impl AdapterReport {
    /// Asks `adapter`.
    pub fn of(index: usize, adapter: &wgpu::Adapter) -> Self {
        let facts = AdapterFacts::of(index, adapter);
        let limits = adapter.limits();
        Self {
            index,
            backend: facts.backend,
            kind: format!("{:?}", adapter.get_info().device_type),
            name: facts.name,
            driver: facts.driver,
            max_buffer_bytes: facts.max_buffer_bytes,
            max_binding_bytes: facts.max_binding_bytes,
            max_texture_side: facts.max_texture_side,
            workgroup_memory_bytes: facts.max_workgroup_bytes,
            max_workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            max_workgroups: facts.max_workgroups,
            max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
            subgroup_size: facts.subgroups.then_some((facts.subgroup_min_size, facts.subgroup_max_size)),
            shader_f16: facts.f16,
            timestamps: facts.timestamps,
        }
    }
}

impl Display for AdapterReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mib = |bytes: u64| bytes >> 20;
        let yes = |value: bool| if value { "yes" } else { "no" };
        writeln!(
            f,
            "adapter {}: {} ({}, {}; {})",
            self.index, self.name, self.kind, self.backend, self.driver
        )?;
        writeln!(
            f,
            "  largest buffer {} MiB, storage binding {} MiB, texture side {}",
            mib(self.max_buffer_bytes),
            mib(self.max_binding_bytes),
            self.max_texture_side
        )?;
        writeln!(
            f,
            "  workgroup: {} invocations, {} KiB memory; {} workgroups a dimension; {} storage buffers",
            self.max_workgroup_invocations,
            self.workgroup_memory_bytes >> 10,
            self.max_workgroups,
            self.max_storage_buffers
        )?;
        let subgroups = match self.subgroup_size {
            Some((least, most)) => format!("{least} to {most} lanes"),
            None => "no".into(),
        };
        write!(
            f,
            "  subgroups: {subgroups}; f16: {}; timestamps: {}",
            yes(self.shader_f16),
            yes(self.timestamps)
        )
    }
}

/// One kernel held against its twin on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// The kernel's name and choices.
    pub kernel: String,
    /// Normalised mean squared error; `None` where the kernel wrote no number, or outside its place.
    pub nmse: Option<f64>,
    /// Whether that is right.
    pub ok: bool,
}

impl From<&Checked> for KernelReport {
    fn from(checked: &Checked) -> Self {
        let nmse = Some(checked.nmse).filter(|nmse| nmse.is_finite());
        Self { kernel: checked.kernel.clone(), nmse, ok: checked.ok() }
    }
}

impl Display for KernelReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let verdict = if self.ok { "ok   " } else { "WRONG" };
        match self.nmse {
            Some(nmse) => write!(f, "  {verdict} {nmse:8.1e}  {}", self.kernel),
            None => write!(f, "  {verdict}     none  {}", self.kernel),
        }
    }
}

/// A set of kernels that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialReport {
    /// In words that `--kernels` takes.
    pub choice: Value,
    /// Milliseconds of a decode step of one sequence, of eight, and of a prompt of 64 tokens; on a model of the right shapes
    /// with as many layers as load quickly. `None` where it failed.
    pub ms: Option<[f64; 3]>,
    /// All of it as a sentence.
    pub sentence: String,
}

impl From<&Trial> for TrialReport {
    fn from(trial: &Trial) -> Self {
        let ms = trial
            .times
            .as_ref()
            .ok()
            .map(|times| [times.decode_ns, times.batch_ns, times.prefill_ns].map(|ns| ns as f64 / 1e6));
        Self { choice: trial.choice.to_json(), ms, sentence: trial.to_string() }
    }
}

impl Display for TrialReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.sentence)
    }
}

/// A quantity that was measured several times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// What was measured, and how.
    pub what: String,
    /// The unit of the numbers.
    pub unit: &'static str,
    /// How often it was measured.
    pub repeats: usize,
    /// The smallest value.
    pub min: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Measure {
    /// Sums up `values`, of which there is at least one.
    pub fn new(what: String, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let repeats = values.len();
        Self { what, unit, repeats, min: at(0), median: at(repeats / 2), max: at(repeats.saturating_sub(1)) }
    }
}

impl Display for Measure {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { what, unit, repeats, min, median, max } = self;
        write!(f, "  {median:.1} {unit} (median of {repeats}; {min:.1} to {max:.1}): {what}")
    }
}

/// The adapter that the engine would use, at work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChosenReport {
    /// Which.
    pub index: usize,
    /// Whether it was opened with WebGPU's default limits.
    pub default_limits: bool,
    /// The kernels it gets.
    pub kernels: String,
    /// The same in words that `--kernels` takes.
    pub choice: Value,
    /// Who chose them: facts, pinned, remembered or measured.
    pub chosen_by: &'static str,
    /// Why these.
    pub why: String,
    /// The sets of kernels that were tried, where some were.
    pub trials: Vec<TrialReport>,
    /// Each of them against the CPU.
    pub self_test: Vec<KernelReport>,
    /// How fast it is.
    pub measures: Vec<Measure>,
}

impl Display for ChosenReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let limits = if self.default_limits { " with default limits" } else { "" };
        writeln!(f, "adapter {} is used{limits}: {}", self.index, self.kernels)?;
        writeln!(f, "  because: {}", self.why)?;
        self.trials.iter().try_for_each(|trial| writeln!(f, "  tried: {trial}"))?;
        let wrong = self.self_test.iter().filter(|kernel| !kernel.ok).count();
        writeln!(
            f,
            "self-test, normalised mean squared error against the CPU: {} kernels, {wrong} wrong",
            self.self_test.len()
        )?;
        self.self_test.iter().try_for_each(|kernel| writeln!(f, "{kernel}"))?;
        write!(f, "speed")?;
        self.measures.iter().try_for_each(|measure| write!(f, "\n{measure}"))
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What is here.
    pub adapters: Vec<AdapterReport>,
    /// The one that is used.
    pub chosen: ChosenReport,
    /// What steps of the model cost on it; absent where the model is not here.
    pub costs: Option<StepCosts>,
    /// What would make this machine better, each with the command to type.
    pub missing: Vec<String>,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.adapters.iter().try_for_each(|adapter| writeln!(f, "{adapter}"))?;
        write!(f, "{}", self.chosen)?;
        let costs = self.costs.iter().flat_map(|costs| super::costs::lines(costs, Style::PLAIN));
        costs.into_iter().try_for_each(|line| write!(f, "\n{line}"))?;
        self.missing.iter().try_for_each(|sentence| write!(f, "\nmissing: {sentence}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], expected: (f64, f64, f64)) {
        let measure = Measure::new("speed".into(), "m/s", values.to_vec());
        assert_eq!((measure.min, measure.median, measure.max), expected);
        assert_eq!(measure.repeats, values.len());
        assert!(measure.to_string().contains("m/s"));
    }

    #[test]
    fn a_measure_is_its_middle_and_its_ends() {
        check(&[3.0], (3.0, 3.0, 3.0));
        check(&[3.0, 1.0, 2.0], (1.0, 2.0, 3.0));
        check(&[4.0, 1.0, 3.0, 2.0, 5.0], (1.0, 3.0, 5.0));
    }

    #[test]
    fn a_kernel_without_numbers_is_wrong_and_still_json() {
        let report = KernelReport::from(&Checked { kernel: "k".into(), nmse: f64::INFINITY, max_nmse: 1e-8 });
        assert_eq!((report.ok, report.nmse), (false, None));
        assert!(report.to_string().contains("WRONG"), "{report}");
        let json = serde_json::to_value(&report).expect("it is JSON");
        assert_eq!(json, serde_json::json!({ "kernel": "k", "nmse": null, "ok": false }));
    }
}
