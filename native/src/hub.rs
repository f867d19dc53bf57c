//! Models from the Hugging Face hub: which files a repository needs for one, and where they come from.
//!
//! Never trusts a file name from the network: one that could leave its folder is refused.

use std::path::Path;

use serde::Deserialize;

use crate::cache::{Cache, Environment};
use crate::download::Http;
use crate::failure::Failure;
use crate::models::{HubName, INCOMPLETE_MARKER, INDEX_NAME, is_plain_file};

/// The hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
/// What a safetensors model has beside its weights, where the repository has it.
const COMPANIONS: [&str; 7] = [
    INDEX_NAME,
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

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

/// The files that make a model: safetensors with their companions, or the one GGUF file.
fn choose(repo: &str, names: &[String]) -> Result<Vec<String>, Failure> {
    let top_level = |ending: &str| -> Vec<String> {
        let wanted = |name: &&String| name.ends_with(ending) && is_plain_file(name) && !name.contains('/');
        names.iter().filter(wanted).cloned().collect()
    };
    let mut shards = top_level(".safetensors");
    // Some repositories hold the same weights a second time under another name; the library's own begin with `model`.
    if shards.iter().any(|name| name.starts_with("model")) {
        shards.retain(|name| name.starts_with("model"));
    }
    if !shards.is_empty() && names.iter().any(|name| name == "config.json") {
        let companions = COMPANIONS.iter().map(|name| (*name).to_owned()).filter(|name| names.contains(name));
        return Ok(companions.chain(shards).collect());
    }
    let mut ggufs = top_level(".gguf");
    ggufs.sort();
    match ggufs.as_slice() {
        [] => Err(Failure::model(format!(
            "{repo} holds neither config.json with .safetensors nor a .gguf file; choose another repository"
        ))),
        [one] => Ok(vec![one.clone()]),
        several => Err(Failure::usage(format!(
            "{repo} holds {} GGUF files; name one, as in `firstlight pull {repo}:{}` ({})",
            several.len(),
            several[0],
            several.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: Option<&[&str]>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let got = choose("o/r", &names).ok();
        let got: Option<Vec<&str>> = got.as_ref().map(|files| files.iter().map(String::as_str).collect());
        assert_eq!(got.as_deref(), expected, "{names:?}");
    }

    #[test]
    fn a_repository_gives_one_model() {
        check(
            &["README.md", "config.json", "tokenizer.json", "model.safetensors", "onnx/x.safetensors"],
            Some(&["config.json", "tokenizer.json", "model.safetensors"]),
        );
        check(&["x.Q8_0.gguf", "README.md"], Some(&["x.Q8_0.gguf"]));
        check(&["a.gguf", "b.gguf"], None);
        check(&["../a.gguf"], None);
        check(&["README.md"], None);
        check(&["model.safetensors"], None);
    }
}
