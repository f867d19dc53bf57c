//! Where things are: the workspace, the target folder, the built binary; and the builds that everything else needs.
//!
//! Everything is built in the release profile, so that dependencies are compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, say, watch};

/// The paths of this checkout.
pub struct Workspace {
    /// The folder with the workspace's Cargo.toml.
    pub root: PathBuf,
    /// Where `firstlight` is built: beside this program, which the same profile built.
    pub profile_folder: PathBuf,
}

impl Workspace {
    /// Finds both from this program's own place, which follows `CARGO_TARGET_DIR` and every configuration file.
    pub fn find() -> Result<Self, String> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().ok_or("xtask lies outside a workspace")?.to_path_buf();
        let program =
            std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let profile_folder = program.parent().ok_or("this program lies in no folder")?.to_path_buf();
        Ok(Self { root, profile_folder })
    }

    /// `cargo`, the same that runs us, in the workspace's root.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// The built `firstlight`.
    pub fn binary(&self) -> PathBuf {
        self.profile_folder.join(format!("firstlight{}", std::env::consts::EXE_SUFFIX))
    }

    /// The folder of all builds.
    pub fn target_folder(&self) -> &Path {
        self.profile_folder.parent().unwrap_or(&self.profile_folder)
    }

    /// What programs that open a Vulkan driver get beside their own settings: a folder for sockets where the session has
    /// none, because Mesa's layer for choosing devices complains on stderr about its absence.
    pub fn driver_settings(&self) -> Vec<(&'static str, PathBuf)> {
        let mut settings = vec![("MESA_SHADER_CACHE_DIR", self.profile_folder.join("mesa-shader-cache"))];
        if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
            settings.push(("XDG_RUNTIME_DIR", std::env::temp_dir()));
        }
        settings
    }

    /// This system's target triple.
    pub fn host(&self) -> Result<String, String> {
        let version = capture(Command::new("rustc").arg("-vV"))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host; repair the toolchain".to_owned())
    }

    /// Downloads the crates first and by itself, so that a missing network is one sentence.
    pub fn fetch_crates(&self) -> Result<(), String> {
        let host = self.host()?;
        let arguments = ["fetch", "--locked", "--target", &host, "--target", crate::wasm::TARGET];
        if capture(self.cargo(&arguments).arg("--offline")).is_ok() {
            return Ok(());
        }
        say("downloading the crates named in Cargo.lock");
        capture(&mut self.cargo(&arguments)).map(drop).map_err(|reason| {
            format!("the crates could not be downloaded ({reason}); run `cargo fetch --locked` where the network can be reached")
        })
    }

    /// Builds `firstlight`. As one of the workspace, so that its dependencies have the features that the tests build them
    /// with: they are compiled once, and what is tested is what is shipped.
    pub fn build_binary(&self) -> Result<(), String> {
        watch(&mut self.cargo(&["build", "--release", "--locked", "--workspace", "--bin", "firstlight"]))
    }
}
