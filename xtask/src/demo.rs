//! The demo: set up, build, ask a first question, and stay for more.

use std::process::Command;

use crate::command::{say, watch};
use crate::workspace::Workspace;
use crate::{model, vulkan};

const FIRST_QUESTION: &str = "What is the first light of a telescope? Answer in two sentences.";

/// Runs the demo; with `once` it ends after the first answer.
pub fn run(once: bool) -> Result<(), String> {
    let workspace = Workspace::find()?;
    vulkan::ensure()?;
    workspace.fetch_crates()?;
    say("building firstlight (a few minutes the first time)");
    workspace.build_binary()?;
    let file = model::ensure(&workspace)?;
    say(&format!("\n> {FIRST_QUESTION}\n"));
    let program = |arguments: &[&str]| {
        let mut command = Command::new(workspace.binary());
        command.args(arguments).env("FIRSTLIGHT_MODEL_FILE", &file).envs(workspace.driver_settings());
        command
    };
    watch(&mut program(&["run", "--max-tokens", "96", "-p", FIRST_QUESTION]))?;
    if once {
        return Ok(());
    }
    say("");
    stay(program(&["chat"]))
}

/// The chat takes this process's place, so that Ctrl-C reaches it and nothing else.
#[cfg(unix)]
fn stay(mut chat: Command) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let error = chat.exec();
    Err(format!("`{}` does not start: {error}", crate::command::line(&chat)))
}

#[cfg(not(unix))]
fn stay(mut chat: Command) -> Result<(), String> {
    watch(&mut chat)
}
