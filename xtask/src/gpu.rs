//! What a real GPU reaches, in a few minutes on a rented machine: the default model and a random one of a published shape,
//! each held against the goals.
//!
//! Builds the program and nothing else. Invariant: it fails where a measurement did not run, never because a goal is missed.

mod random_model;

use std::process::Command;
use std::time::Instant;

use crate::command::{say, watch};
use crate::workspace::Workspace;
use crate::{model, vulkan};

use random_model::Shape;

/// Which random model is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The large one where the machine shows a GPU.
    ByMachine,
    /// As wide as a CPU can take in seconds.
    Small,
    /// The shape of Llama 3.2 1B.
    Large,
}

impl Size {
    fn shape(self) -> Shape {
        match self {
            Self::Large => random_model::LARGE,
            Self::ByMachine if vulkan::shows_gpu() => random_model::LARGE,
            Self::ByMachine | Self::Small => random_model::SMALL,
        }
    }
}

/// Runs it.
///
/// # Errors
/// What could not be brought, written or measured.
pub fn run(size: Size) -> Result<(), String> {
    let workspace = Workspace::find()?;
    vulkan::ensure()?;
    workspace.build_binary()?;
    let file = model::ensure(&workspace)?;
    let start = Instant::now();
    let shape = size.shape();
    let random = workspace.target_folder().join("gpu").join(format!("{}.gguf", shape.name));
    shape.ensure(&random)?;
    let golden = workspace.root.join("tests").join("golden").join("golden.json");
    say(
        "what is reached, beside what the adapter was measured to do at best; a goal that is missed is SHORT:",
    );
    watch(goals(&workspace).env("FIRSTLIGHT_MODEL_FILE", &file).arg("--golden").arg(golden))?;
    watch(goals(&workspace).arg("--model").arg(&random))?;
    say(&format!("measured in {:.0} s; a busy machine gives smaller shares", start.elapsed().as_secs_f64()));
    Ok(())
}

fn goals(workspace: &Workspace) -> Command {
    let mut command = Command::new(workspace.binary());
    command.args(["bench", "--goals"]).envs(workspace.driver_settings());
    command
}
