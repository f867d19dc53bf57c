//! The page: the web crate compiled for browsers, and put together by `firstlight-glue`.
//!
//! Never installs a tool: wasm-bindgen is linked into that crate. It is built as one of the workspace, so that it shares
//! what it can with the other builds.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{capture, say, watch};
use crate::workspace::Workspace;
use crate::{model, wasm};

/// The name that the page shows for the default model.
const MODEL_NAME: &str = "SmolLM2-135M-Instruct";
/// Small before fast; see the workspace's Cargo.toml.
const PROFILE: &str = "page";

/// The page's folder.
pub fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root.join("web/dist")
}

/// The task: everything that the page needs, then the page, with the default model beside it where that is wanted.
pub fn run(with_model: bool) -> Result<(), String> {
    let workspace = Workspace::find()?;
    wasm::ensure()?;
    workspace.fetch_crates()?;
    if !with_model {
        build(&workspace, None)?;
    } else {
        // The program knows where the model is, and is built with the page in it.
        build(&workspace, None)?;
        workspace.build_binary()?;
        let file = model::ensure(&workspace)?;
        build(&workspace, Some(file))?;
    }
    say("any static host serves it as it is: python3 -m http.server -d web/dist");
    Ok(())
}

/// Makes the page. What has not changed is not made again.
///
/// # Errors
/// It does not compile, or is too large.
pub fn build(workspace: &Workspace, model: Option<PathBuf>) -> Result<(), String> {
    let target = wasm::TARGET;
    let mut cargo = workspace.cargo(&["build", "--locked", "--profile", PROFILE, "--target", target]);
    watch(cargo.args(["--package", "firstlight-web"]).arg(nameless(workspace)))?;
    let built = workspace.target_folder().join(target).join(PROFILE).join("firstlight_web.wasm");
    let mut glue = glue(workspace)?;
    glue.arg(built).arg(workspace.root.join("web")).arg(folder(workspace));
    if let Some(file) = model {
        glue.args(["--model", MODEL_NAME]).arg(file);
    }
    say(capture(&mut glue)?.trim());
    Ok(())
}

/// Makes the claims about the page that are made in Rust, beside the tools that run them. The page has been made: both share
/// what they depend on.
///
/// # Errors
/// They do not compile.
pub fn build_claims(workspace: &Workspace) -> Result<(), String> {
    let target = wasm::TARGET;
    let mut cargo = workspace.cargo(&["rustc", "--locked", "--profile", PROFILE, "--target", target]);
    cargo.args(["--package", "firstlight-web", "--example", "claims"]).arg(nameless(workspace));
    // Compiled in half the time: nobody downloads it.
    watch(cargo.args(["--", "-C", "opt-level=0"]))?;
    let built = workspace.target_folder().join(target).join(PROFILE).join("examples/claims.wasm");
    let mut glue = glue(workspace)?;
    glue.arg("--module").arg(built).arg(workspace.target_folder().join("browser/claims"));
    say(capture(&mut glue)?.trim());
    Ok(())
}

/// The option of cargo with which the folders of this machine stay out of what the page's visitors download: the places of
/// panics then begin with a crate's name, whoever compiled it.
fn nameless(workspace: &Workspace) -> String {
    let folders = sources_of_crates();
    let remaps = folders.iter().chain([&workspace.root]).map(|folder| {
        let flag = format!("--remap-path-prefix={}{}=", folder.display(), std::path::MAIN_SEPARATOR);
        // As TOML's literal text, in which a backslash is one.
        format!("'{flag}'")
    });
    let flags: Vec<String> = remaps.collect();
    format!("--config=target.{}.rustflags=[{}]", wasm::TARGET, flags.join(","))
}

/// Where cargo unpacks the crates that it downloads, a folder for each registry.
fn sources_of_crates() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let Some(sources) = home.map(|home| home.join("registry/src")) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(sources) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

/// The program that makes what browsers load of what the compiler makes.
fn glue(workspace: &Workspace) -> Result<Command, String> {
    watch(&mut workspace.cargo(&[
        "build",
        "--release",
        "--locked",
        "--workspace",
        "--bin",
        "firstlight-glue",
    ]))?;
    let glue = format!("firstlight-glue{}", std::env::consts::EXE_SUFFIX);
    Ok(Command::new(workspace.profile_folder.join(glue)))
}
