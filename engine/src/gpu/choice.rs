//! Which kernels an adapter gets. The choice is made from its facts, never from the platform.
//!
//! Never compiles or measures. Invariant: all kernels of one choice add in one order, so that a token's numbers do not
//! depend on what shares its batch; a choice of which that is not so says it in [`KernelChoice::same_bits`].

use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::weights::Home;
use firstlight_shaders::{Activations, KvFormat, rope_kv_write};

use super::AdapterFacts;

/// The matrix kernels. None of them uses cooperative matrices: wgpu 30 has them behind an opt-in to experimental features that
/// is `unsafe`, which this workspace forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulFamily {
    /// Lanes are columns, no barrier: CPU drivers.
    Lanes,
    /// K split over threads of one column for few rows, workgroup tiles for many: GPUs.
    Split,
    /// K split over threads of four columns for few rows, workgroup tiles with more rows a thread for many, a row's positions
    /// split over teams in attention: GPUs. A product's bits are those of [`Self::Split`].
    Quads {
        /// Neighbouring threads that are sure to be in one subgroup, in their order, and add one row up there: 16, 32 or 64; 0
        /// where workgroup memory is to do that.
        lanes: u32,
    },
}

impl MatmulFamily {
    /// Threads that add up by subgroup operations; 0 where none do.
    pub fn lanes(self) -> u32 {
        match self {
            Self::Quads { lanes } => lanes,
            Self::Lanes | Self::Split => 0,
        }
    }
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
    /// Norm, attention and the lanes matrix kernel use subgroup operations of 8 lanes, as CPU drivers like them.
    pub subgroups: bool,
    /// Where they do not, the lanes matrix kernel has threads in fours share what they read.
    pub quads: bool,
    /// Where tokens are chosen.
    pub sample_on: SampleOn,
    /// How the products of the layers take their left factor; the head's is always f32.
    pub activations: Activations,
    /// How a GPU multiplies tiles of many rows. Single precision but where somebody asks for less.
    pub tile_arithmetic: Arithmetic,
    /// How the KV cache is stored.
    pub kv: KvFormat,
}

impl KernelChoice {
    /// Whether a token's numbers are the same bits whatever shares its batch. In half precision they are not: a prompt is
    /// then rounded otherwise than a row alone, and ids are what can be compared.
    pub fn same_bits(self) -> bool {
        self.tile_arithmetic == Arithmetic::F32
    }

    /// Whether the products around a norm compute its halves. 8 lanes do so together.
    pub fn fuses_norms(self) -> bool {
        self.matmul == MatmulFamily::Lanes && self.subgroups
    }

    /// Whether the product of q, k and v turns them and writes the KV cache: two lanes do so together, and it binds more than a browser
    /// has to grant. A GPU keeps the kernel of its own, which costs it microseconds a layer; on a CPU driver a dispatch costs tens.
    pub fn fuses_rope(self, rope: rope_kv_write::Variant, facts: &AdapterFacts) -> bool {
        let at = |home| u32::from(self.home == home) * 2 + u32::from(self.work_home == home) * 3;
        // The weights' two, x, keys and values are where they live; bias, y, squares, rows and angles in buffers.
        let fits = at(Home::Texture) <= facts.max_storage_textures
            && 5 + at(Home::Buffer) <= facts.max_storage_buffers;
        self.matmul == MatmulFamily::Lanes && self.subgroups && fits && rope.fits_a_product()
    }

    /// Whether attention without subgroups has 4 threads, as CPU drivers like it, and not 64.
    pub fn few_threads(self) -> bool {
        self.matmul == MatmulFamily::Lanes
    }

    /// Teams of 64 threads that share a row's positions in attention without subgroups: four where the matrix kernels are the
    /// newer ones of GPUs, so that a trial against [`MatmulFamily::Split`] tries both.
    pub fn attention_teams(self) -> u32 {
        match self.matmul {
            MatmulFamily::Quads { .. } => 4,
            MatmulFamily::Lanes | MatmulFamily::Split => 1,
        }
    }

    /// Whether its kernels come for such activations: the lane kernels alone multiply 8-bit ones.
    pub fn has(self, activations: Activations) -> bool {
        activations == Activations::F32 || self.matmul == MatmulFamily::Lanes
    }

    /// Every choice that is worth a trial on an adapter, that of [`Self::for_adapter`] first; f32 activations. Each of them
    /// gives the ids that the others give, but not their bits.
    pub fn candidates(facts: &AdapterFacts) -> Vec<Self> {
        let first = Self::for_adapter(facts);
        let mut candidates = vec![first];
        let mut add = |choice: Self| {
            if choice.fits(facts).is_ok() && !candidates.contains(&choice) {
                candidates.push(choice);
            }
        };
        match first.matmul {
            MatmulFamily::Lanes => {
                for (home, work_home) in [
                    (Home::Texture, Home::Texture),
                    (Home::Texture, Home::Buffer),
                    (Home::Buffer, Home::Buffer),
                ] {
                    add(Self { home, work_home, ..first });
                }
                let quads = facts.subgroups && facts.subgroup_min_size >= 4;
                add(Self { home: Home::Texture, work_home: Home::Buffer, subgroups: false, quads, ..first });
            }
            MatmulFamily::Split | MatmulFamily::Quads { .. } => {
                add(Self { matmul: MatmulFamily::Quads { lanes: 0 }, ..first });
                add(Self { matmul: MatmulFamily::Split, ..first });
                add(Self { subgroups: !first.subgroups, ..first });
            }
        }
        candidates
    }

    /// The choice for an adapter.
    pub fn for_adapter(facts: &AdapterFacts) -> Self {
        if !facts.is_cpu {
            return Self {
                matmul: MatmulFamily::Quads { lanes: sure_lanes(facts) },
                home: Home::Buffer,
                work_home: Home::Buffer,
                subgroups: false,
                quads: false,
                sample_on: SampleOn::Gpu,
                activations: Activations::F32,
                tile_arithmetic: Arithmetic::F32,
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
            quads: !subgroups && facts.subgroups && facts.subgroup_min_size >= 4,
            // Where the CPU does both, a step that is submitted ahead gains nothing: encoding it takes the cores that
            // compute. And logits are in its memory already.
            sample_on: SampleOn::Cpu,
            activations: Activations::F32,
            tile_arithmetic: Arithmetic::F32,
            // Half the gathers of attention. Without 8 lanes attention gathers nothing, and is a small part of a step.
            kv: if subgroups { KvFormat::F16 } else { KvFormat::F32 },
        }
    }
}

/// Neighbours that a GPU's smallest subgroup puts together, as [`MatmulFamily::Quads`] wants them.
fn sure_lanes(facts: &AdapterFacts) -> u32 {
    match facts.subgroup_min_size {
        16.. if facts.subgroups => 1 << facts.subgroup_min_size.min(64).ilog2(),
        _ => 0,
    }
}

/// The facts behind [`KernelChoice::for_adapter`], in words.
pub fn why(facts: &AdapterFacts) -> String {
    let lanes = format!("subgroups of {} to {}", facts.subgroup_min_size, facts.subgroup_max_size);
    if !facts.is_cpu {
        let kind = "a GPU: buffers are fast, dispatches are cheap, reading logits back is not";
        return match (facts.subgroups, sure_lanes(facts)) {
            (true, 16..) => format!("{kind}; {lanes}, which add up one row"),
            (true, _) => format!("{kind}; {lanes}, where 16 or more add up a row"),
            (false, _) => format!("{kind}; no subgroups"),
        };
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
            "matmul {}, weights in {}s{}, {}, sampling on the {}, {} activations{}, {} KV cache",
            match self.matmul {
                MatmulFamily::Lanes => "lanes".to_string(),
                MatmulFamily::Split => "split".to_string(),
                MatmulFamily::Quads { lanes: 0 } => "quads".to_string(),
                MatmulFamily::Quads { lanes } => format!("quads of {lanes} lanes"),
            },
            self.home.name(),
            match self.work_home == self.home {
                true => String::new(),
                false => format!(" and work in {}s", self.work_home.name()),
            },
            match (self.subgroups, self.quads) {
                (true, _) => "with subgroups",
                (false, true) => "without subgroups but in fours",
                (false, false) => "without subgroups",
            },
            match self.sample_on {
                SampleOn::Cpu => "CPU",
                SampleOn::Gpu => "GPU",
            },
            self.activations.name(),
            match self.tile_arithmetic {
                Arithmetic::F32 => "",
                Arithmetic::F16 => ", tiles multiplied in f16",
            },
            self.kv.name()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::pin::tests::facts;

    fn check(facts: &AdapterFacts, matmul: MatmulFamily, reason: &str) {
        assert_eq!(KernelChoice::for_adapter(facts).matmul, matmul, "{facts:?}");
        assert!(why(facts).contains(reason), "{}", why(facts));
        for choice in KernelChoice::candidates(facts) {
            // A trial may choose the quickest, never one that rounds more than it has to.
            assert!(choice.same_bits() && choice.fits(facts).is_ok(), "{choice}");
        }
    }

    #[test]
    fn gpus_add_up_rows_in_the_subgroups_that_are_sure() {
        let quads = |lanes| MatmulFamily::Quads { lanes };
        check(&facts(false, 32), quads(32), "subgroups of 32 to 32, which add up one row");
        check(&facts(false, 64), quads(64), "which add up one row");
        check(&facts(false, 128), quads(64), "which add up one row");
        check(&facts(false, 8), quads(0), "subgroups of 8 to 8, where 16 or more add up a row");
        check(&facts(false, 0), quads(0), "no subgroups");
        check(&facts(true, 8), MatmulFamily::Lanes, "the driver computes on the CPU");
    }
}
