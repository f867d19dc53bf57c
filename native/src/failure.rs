//! How a command ends when it does not succeed: an exit code, and one sentence for a person.
//!
//! Invariant: the sentence says what, with which value, and what to do next.

use firstlight_engine::error::{DeviceError, LoadError};
use firstlight_engine::model::LoadFailure;
use firstlight_engine::request::RejectReason;
use firstlight_engine::runner::RunnerError;

/// The exit codes that scripts hold on to; 0 is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Something failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// No usable adapter.
    NoAdapter = 3,
    /// The model is missing, unreadable or unsupported.
    Model = 4,
}

/// Why a command ends without having done what it was asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{sentence}")]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One sentence.
    pub sentence: String,
}

impl Failure {
    /// Exit code 1.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, sentence: sentence.into() }
    }

    /// Exit code 2.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, sentence: sentence.into() }
    }

    /// Exit code 3.
    pub fn no_adapter(sentence: impl Into<String>) -> Self {
        Self { exit: Exit::NoAdapter, sentence: sentence.into() }
    }

    /// Exit code 4.
    pub fn model(sentence: impl Into<String>) -> Self {
        Self { exit: Exit::Model, sentence: sentence.into() }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self::model(error.to_string())
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let sentence = error.to_string();
        match error {
            DeviceError::NoAdapter(_) | DeviceError::NoDevice { .. } | DeviceError::SelfTest { .. } => {
                Self::no_adapter(format!("{sentence}; `firstlight doctor` shows what is there"))
            }
            DeviceError::OutOfMemory { .. } | DeviceError::Kernel { .. } => Self::failed(sentence),
        }
    }
}

impl From<LoadFailure> for Failure {
    fn from(failure: LoadFailure) -> Self {
        match failure {
            LoadFailure::Load(error) => error.into(),
            LoadFailure::Device(error) => error.into(),
            LoadFailure::Runner(error) => error.into(),
            LoadFailure::Compose(error) => Self::failed(error.to_string()),
        }
    }
}

impl From<RunnerError> for Failure {
    fn from(error: RunnerError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<RejectReason> for Failure {
    fn from(reason: RejectReason) -> Self {
        match reason {
            RejectReason::InvalidParameter { .. }
            | RejectReason::EmptyPrompt
            | RejectReason::UnknownToken { .. } => Self::usage(reason.to_string()),
            _ => Self::failed(reason.to_string()),
        }
    }
}
