//! Where a step's time goes, kernel by kernel.
//!
//! It runs made-up steps on an idle runner and disturbs what the KV cache held. Invariant: the kernels' times are of the same
//! dispatches as the whole's, one by one.

/// A made-up step: sequences of one length, each with the same number of new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences, all of them sampled.
    pub num_seqs: u32,
    /// New tokens of each: 1 decodes, more are a prompt's.
    pub tokens_per_seq: u32,
    /// Tokens of each once the step is done; at least `tokens_per_seq`.
    pub context: u32,
}

impl StepShape {
    /// Rows of the batch.
    pub fn num_rows(self) -> u32 {
        self.num_seqs * self.tokens_per_seq
    }

    /// Positions that all rows look at together.
    pub fn num_attended(self) -> u64 {
        let (last, new) = (u64::from(self.context), u64::from(self.tokens_per_seq));
        let first = last - new + 1;
        u64::from(self.num_seqs) * (first + last) * new / 2
    }
}

/// What one kernel did in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name and choices.
    pub kernel: String,
    /// Dispatches of it.
    pub dispatches: u32,
    /// Their time on the GPU's clock.
    pub ns: u64,
    /// Multiply-adds that it had to do.
    pub macs: u64,
    /// Bytes that it had to move at least: of weights, or of rows, keys and values where it has none.
    pub bytes: u64,
}

/// A step's time, whole and in kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProfile {
    /// The step as it runs always, in one compute pass; on the GPU's clock.
    pub whole_ns: u64,
    /// The same dispatches with a compute pass of their own each, by kernel, in the order in which they first run.
    pub kernels: Vec<KernelTime>,
}

impl StepProfile {
    pub(super) fn add(&mut self, kernel: &str, ns: u64, macs: u64, bytes: u64) {
        let known = self.kernels.iter_mut().find(|known| known.kernel == kernel);
        match known {
            Some(known) => {
                known.dispatches += 1;
                known.ns += ns;
                known.macs += macs;
                known.bytes += bytes;
            }
            None => {
                let kernel = kernel.to_owned();
                self.kernels.push(KernelTime { kernel, dispatches: 1, ns, macs, bytes });
            }
        }
    }
}
