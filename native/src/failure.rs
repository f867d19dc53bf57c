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
    /// Ctrl-C stopped it; what shells expect of that.
    Interrupted = 130,
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
        Self::new(Exit::Failed, sentence)
    }

    /// Exit code 2.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Usage, sentence)
    }

    /// Exit code 3.
    pub fn no_adapter(sentence: impl Into<String>) -> Self {
        Self::new(Exit::NoAdapter, sentence)
    }

    /// Exit code 4.
    pub fn model(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Model, sentence)
    }

    /// Exit code 130.
    pub fn interrupted(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Interrupted, sentence)
    }

    fn new(exit: Exit, sentence: impl Into<String>) -> Self {
        Self { exit, sentence: one_line(&sentence.into()) }
    }
}

/// A sentence on one line and without control characters: drivers, servers and file names put in what they like.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
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
            DeviceError::OutOfMemory { .. } => Self::failed(format!(
                "{sentence}; lower --kv-memory, --slots or --batch-tokens, or take a smaller model"
            )),
            DeviceError::Kernel { .. } => Self::failed(format!(
                "{sentence}; choose another adapter with --adapter and report this defect"
            )),
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
        let advice = match &error {
            RunnerError::DeviceLost(_) => "run the command again",
            RunnerError::OutOfMemory(_) => "lower --kv-memory, --slots or --batch-tokens",
            RunnerError::Internal(_) => "choose another adapter with --adapter and report this defect",
        };
        Self::failed(format!("{error}; {advice}"))
    }
}

impl From<RejectReason> for Failure {
    fn from(reason: RejectReason) -> Self {
        match reason {
            // The engine knows the parameter by its name on the wire; here it was a flag.
            RejectReason::InvalidParameter { name, value, range } => {
                Self::usage(format!("--{} is {value}; it must be {range}", name.replace('_', "-")))
            }
            RejectReason::EmptyPrompt | RejectReason::UnknownToken { .. } => Self::usage(reason.to_string()),
            _ => Self::failed(reason.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(failure: Failure, exit: Exit, expected: &str) {
        assert_eq!((failure.exit, failure.to_string().as_str()), (exit, expected));
    }

    #[test]
    fn a_failure_is_one_line_whatever_was_put_into_it() {
        check(Failure::failed("a\n  b\r\n\u{1b}[31mc"), Exit::Failed, "a b [31mc");
        let name = "there is no model \"x\ny\"";
        check(Failure::model(name), Exit::Model, "there is no model \"x y\"");
    }

    #[test]
    fn a_parameter_is_told_as_the_flag_that_it_was() {
        let reason = RejectReason::InvalidParameter { name: "top_p", value: "1.5".into(), range: "0 to 1" };
        check(reason.into(), Exit::Usage, "--top-p is 1.5; it must be 0 to 1");
    }
}
