//! Which kernels an adapter gets. The choice is made from its facts, never from the platform.
//!
//! Never compiles or measures. Invariant: all kernels of one choice add in one order, so that a token's numbers do not
//! depend on what shares its batch.

use firstlight_shaders::weights::Home;
use firstlight_shaders::{Activations, KvFormat};

use super::AdapterFacts;

/// The matrix kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulFamily {
    /// Lanes are columns, no barrier: CPU drivers.
    Lanes,
    /// K split over threads for few rows, workgroup tiles for many: GPUs.
    Split,
}

/// Where tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOn {
    /// Logits are read back whole: on a CPU driver that is a copy in memory.
    Cpu,
    /// Four bytes a row come back, unless a row wants log-probabilities or penalties.
    Gpu,
}

/// One choice of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelChoice {
    /// The matrix kernels.
    pub matmul: MatmulFamily,
    /// Where weights live.
    pub home: Home,
    /// Where lives what a step writes and its kernels read as texels: the KV cache, and what products are of.
    pub work_home: Home,
    /// Norm, attention and the lanes matrix kernel use subgroup operations.
    pub subgroups: bool,
    /// Where tokens are chosen.
    pub sample_on: SampleOn,
    /// How the products of the layers take their left factor; the head's is always f32.
    pub activations: Activations,
    /// How the KV cache is stored.
    pub kv: KvFormat,
}

impl KernelChoice {
    /// Whether the products around a norm compute its halves. 8 lanes do so together.
    pub fn fuses_norms(self) -> bool {
        self.matmul == MatmulFamily::Lanes && self.subgroups
    }

    /// Whether attention without subgroups has 4 threads, as CPU drivers like it, and not 64.
    pub fn few_threads(self) -> bool {
        self.matmul == MatmulFamily::Lanes
    }

    /// Whether its kernels come for such activations: the lane kernels alone multiply 8-bit ones.
    pub fn has(self, activations: Activations) -> bool {
        activations == Activations::F32 || self.matmul == MatmulFamily::Lanes
    }

    /// The choice for an adapter.
    pub fn for_adapter(facts: &AdapterFacts) -> Self {
        if !facts.is_cpu {
            return Self {
                matmul: MatmulFamily::Split,
                home: Home::Buffer,
                work_home: Home::Buffer,
                subgroups: false,
                sample_on: SampleOn::Gpu,
                activations: Activations::F32,
                // Half the memory, half the bytes that attention reads.
                kv: KvFormat::F16,
            };
        }
        // The lane kernels hand values round between 8 neighbours.
        let subgroups = facts.subgroups && facts.subgroup_min_size >= 8;
        Self {
            matmul: MatmulFamily::Lanes,
            home: Home::Texture,
            // Attention in workgroup memory reads one position a thread, and gains nothing by a gather.
            work_home: if subgroups { Home::Texture } else { Home::Buffer },
            subgroups,
            sample_on: SampleOn::Cpu,
            activations: Activations::F32,
            // Half the gathers of attention; without them unpacking costs what the reads save.
            kv: if subgroups { KvFormat::F16 } else { KvFormat::F32 },
        }
    }
}

/// The facts behind [`KernelChoice::for_adapter`], in words.
pub fn why(facts: &AdapterFacts) -> String {
    let lanes = format!("subgroups of {} to {}", facts.subgroup_min_size, facts.subgroup_max_size);
    if !facts.is_cpu {
        return "a GPU: buffers are fast, dispatches are cheap, reading logits back is not".into();
    }
    let kind = "the driver computes on the CPU";
    match (facts.subgroups, facts.subgroup_min_size >= 8) {
        (true, true) => format!("{kind}; {lanes}"),
        (true, false) => format!("{kind}; {lanes}, where 8 or more are needed"),
        (false, _) => format!("{kind}; no subgroups"),
    }
}

impl std::fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "matmul {}, weights in {}s, {} subgroups, sampling on the {}, {} activations, {} KV cache",
            match self.matmul {
                MatmulFamily::Lanes => "lanes",
                MatmulFamily::Split => "split",
            },
            self.home.name(),
            if self.subgroups { "with" } else { "without" },
            match self.sample_on {
                SampleOn::Cpu => "CPU",
                SampleOn::Gpu => "GPU",
            },
            self.activations.name(),
            self.kv.name()
        )
    }
}
