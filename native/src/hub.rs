//! Models from the Hugging Face hub: which files a repository needs for one, and where they come from.
//!
//! Never trusts a file name from the network: one that could leave its folder is refused.

use std::path::Path;

use firstlight_engine::model::{NoModel, files_of_model};
use serde::Deserialize;

use crate::cache::{Cache, Environment};
use crate::download::Http;
use crate::failure::Failure;
use crate::models::{HubName, INCOMPLETE_MARKER};

/// The hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
#[derive(Deserialize)]
struct Repository {
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// Brings the files of `name` into the cache and returns their folder or file.
///
/// # Errors
/// A repository that is not there, holds no model we can read, or cannot be reached.
pub fn pull(
    name: &HubName,
    cache: &Cache,
    environment: Environment<'_>,
) -> Result<std::path::PathBuf, Failure> {
    let variable = |key: &str| environment(key).and_then(|value| value.into_string().ok());
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
    let endpoint = endpoint.trim_end_matches('/');
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Err(Failure::usage(format!(
            "HF_ENDPOINT is {endpoint:?}; it must be a URL such as {ENDPOINT}, or be unset"
        )));
    }
    let http = Http::new(variable("HF_TOKEN"));
    let files = match &name.file {
        Some(file) => vec![file.clone()],
        None => {
            let url = format!("{endpoint}/api/models/{}", name.repo);
            let text = http.text(&url)?;
            let repository: Repository = serde_json::from_str(&text).map_err(|error| {
                Failure::failed(format!(
                    "{url} answered something else than a repository: {error}; check HF_ENDPOINT"
                ))
            })?;
            let names: Vec<String> = repository.siblings.into_iter().map(|file| file.rfilename).collect();
            choose(&name.repo, &names)?
        }
    };
    let _lock = cache.lock()?;
    let folder = name.folder(cache);
    let cannot_make = |path: &Path, error: std::io::Error| {
        Failure::failed(format!(
            "{} cannot be made: {error}; set FIRSTLIGHT_CACHE to another folder",
            path.display()
        ))
    };
    std::fs::create_dir_all(&folder).map_err(|error| cannot_make(&folder, error))?;
    // Some of a model's files look like a model: until all are here, the folder says that they are not.
    let marker = folder.join(INCOMPLETE_MARKER);
    if files.len() > 1 {
        std::fs::write(&marker, b"").map_err(|error| cannot_make(&marker, error))?;
    }
    for file in &files {
        let path = folder.join(file);
        if path.is_file() {
            continue;
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| cannot_make(parent, error))?;
        }
        http.fetch(&format!("{endpoint}/{}/resolve/main/{file}", name.repo), &path)?;
    }
    if files.len() > 1 {
        std::fs::remove_file(&marker).map_err(|error| cannot_make(&marker, error))?;
    }
    Ok(name.file.as_ref().map_or(folder.clone(), |file| folder.join(file)))
}

/// The files that make a model, in a sentence where they make none.
fn choose(repo: &str, names: &[String]) -> Result<Vec<String>, Failure> {
    files_of_model(names).map_err(|error| match &error {
        NoModel::Nothing => Failure::model(format!("{repo}: {error}")),
        NoModel::Several(files) => {
            Failure::usage(format!("{repo}: {error}, as in `firstlight pull {repo}:{}`", files[0]))
        }
    })
}
