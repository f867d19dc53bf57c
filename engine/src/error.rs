//! What can go wrong beside a request: reading a model, building a device, running a step.
//!
//! Invariant: every error says what, with which value, and what to do next; none of them is a panic.

/// A model cannot be loaded. Exit code 4 of the command line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The bytes could not be read.
    #[error("cannot read {name}: {reason}")]
    Read {
        /// File, URL or key.
        name: String,
        /// What the host said.
        reason: String,
    },
    /// The file breaks its own format.
    #[error("{name} is damaged: {reason}")]
    Malformed {
        /// File, URL or key.
        name: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// A well-formed file that this engine does not run.
    #[error("{name} is not supported: {reason}")]
    Unsupported {
        /// File, URL or key.
        name: String,
        /// Which architecture, tensor type or hyper-parameter, and what is supported.
        reason: String,
    },
    /// A model whose products, or an adapter whose kernels, cannot take the activations that are asked for.
    #[error("{name} is not supported: {reason}; use --activations f32")]
    Activations {
        /// The model.
        name: String,
        /// Which activations, and what does not take them.
        reason: String,
    },
}

/// The adapter or device cannot run the model. Exit code 3 of the command line where no adapter is usable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// No adapter answered, or none matched.
    #[error("no usable GPU adapter: {0}")]
    NoAdapter(String),
    /// The device request failed.
    #[error("the adapter {adapter} gave no device: {reason}")]
    NoDevice {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// An allocation failed or would exceed a limit.
    #[error(
        "out_of_memory: {what} needs {needed_bytes} bytes, and {reason}; lower --kv-memory, --slots, --batch-tokens or --max-model-len, or \
         take a smaller model"
    )]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// How much it needs.
        needed_bytes: u64,
        /// The limit, or what the driver said.
        reason: String,
    },
    /// A kernel did not compile.
    #[error("the kernel {kernel} does not compile on {adapter}: {reason}")]
    Kernel {
        /// The kernel's file name.
        kernel: String,
        /// The adapter's name.
        adapter: String,
        /// What the compiler said.
        reason: String,
    },
    /// A kernel gives wrong numbers on this adapter.
    #[error("the kernel {kernel} gives wrong results on {adapter} (NMSE {nmse:e}); this adapter is refused")]
    SelfTest {
        /// The kernel's file name.
        kernel: String,
        /// The adapter's name.
        adapter: String,
        /// Normalised mean squared error against the CPU twin.
        nmse: f64,
    },
}

/// The device failed. All running requests end `Failed`; the host builds a new runner.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunnerError {
    /// The device is gone.
    #[error(
        "device_lost: the GPU device was lost ({0}); ask again, and update the driver if it happens again"
    )]
    DeviceLost(String),
    /// An allocation failed.
    #[error(
        "out_of_memory: {0}; give it less KV memory, fewer slots or fewer batch tokens (--kv-memory, --slots, --batch-tokens)"
    )]
    OutOfMemory(String),
    /// The driver refused something that validation should have caught.
    #[error("the GPU refused the step: {0}")]
    Internal(String),
}
