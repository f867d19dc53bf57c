//! Which files make the model that was asked for, and where each of them is.
//!
//! It reads lists, never weights. Invariant: no name from outside leaves its folder.

use firstlight_engine::model::{INDEX_NAME, files_of_model, is_plain_file, shard_names};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, File, Url};

use super::incoming::{Origin, fetch};
use super::store::{ListedFile, ModelList};
use crate::browser::words;
use crate::protocol::{BesideModel, ModelChoice};

/// The hub, where no other address was given.
pub const HUB: &str = "https://huggingface.co";
/// The list of models beside the page.
const BESIDE: &str = "models.json";
/// The most bytes of a list.
const MAX_LIST_BYTES: usize = 16 << 20;
/// What a folder of safetensors may have beside its configuration.
const OPTIONAL: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// A model that can be fetched.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What names it in the store.
    pub key: String,
    /// What it should be.
    pub list: ModelList,
    /// Where each file is; none for one that was dropped on the page in an earlier visit.
    pub origins: Vec<Option<Origin>>,
}

#[derive(Deserialize)]
struct Beside {
    models: Vec<BesideModel>,
}

#[derive(Deserialize)]
struct Repository {
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The models beside the page; none where there is no list.
///
/// # Errors
/// There is a list, and it is none that can be read.
pub async fn beside(page_url: &str, stop: &AbortSignal) -> Result<Vec<BesideModel>, String> {
    let url = join(BESIDE, page_url)?;
    let Ok(text) = text_at(&url, stop).await else { return Ok(Vec::new()) };
    // Static hosts that answer everything with a page of theirs have no list either.
    if text.trim_start().starts_with('<') {
        return Ok(Vec::new());
    }
    let list: Beside = serde_json::from_slice(text.as_bytes())
        .map_err(|error| format!("{url} is no list of models: {error}"))?;
    match list.models.iter().find(|model| !is_plain_file(&model.file)) {
        Some(model) => Err(format!("{url} names the file {:?}, which is no plain file name", model.file)),
        None => Ok(list.models),
    }
}

/// What `choice` stands for. `files` were dropped on the page.
///
/// # Errors
/// It is not there, or no model.
pub async fn wanted(
    choice: &ModelChoice,
    page_url: &str,
    hub: &str,
    files: Vec<File>,
    stop: &AbortSignal,
) -> Result<Wanted, String> {
    match choice {
        ModelChoice::Beside { file } => {
            let models = beside(page_url, stop).await?;
            let model = models.into_iter().find(|model| model.file == *file);
            let model =
                model.ok_or_else(|| format!("there is no {file} beside this page any more; reload it"))?;
            let url = join(&model.file, page_url)?;
            let listed = ListedFile {
                file: model.file,
                bytes: model.bytes,
                sha256: Some(model.sha256.to_ascii_lowercase()),
                url,
            };
            Ok(of_urls(model.name, vec![listed]))
        }
        ModelChoice::Stored { key } => {
            Err(format!("the model {key} is not stored here any more; choose it anew"))
        }
        ModelChoice::Url { url } => of_url(url, stop).await,
        ModelChoice::Hub { name } => of_hub(name, hub, stop).await,
        ModelChoice::Files => of_files(files),
    }
}

/// What the store has under `key`, as something to be completed.
pub fn of_stored(key: &str, list: ModelList) -> Wanted {
    let origin = |file: &ListedFile| Some(file.url.clone()).filter(|url| !url.is_empty()).map(Origin::Http);
    Wanted { key: key.to_owned(), origins: list.files.iter().map(origin).collect(), list }
}

fn of_urls(name: String, files: Vec<ListedFile>) -> Wanted {
    let origins = files.iter().map(|file| Some(Origin::Http(file.url.clone()))).collect();
    let first = files.first();
    // The same bytes from two addresses are one model.
    let identity = first.and_then(|file| file.sha256.clone().filter(|_| files.len() == 1));
    let identity = identity.unwrap_or_else(|| files.iter().map(|file| file.url.as_str()).collect());
    Wanted { key: key(&identity), list: ModelList { name, files, whole: false }, origins }
}

/// A folder name of the store.
fn key(identity: &str) -> String {
    Sha256::digest(identity.as_bytes())[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn of_url(address: &str, stop: &AbortSignal) -> Result<Wanted, String> {
    let url = Url::new(address)
        .map_err(|_| format!("{address:?} is no address; give one such as https://example.org/model.gguf"))?;
    let file = url.pathname().rsplit('/').next().unwrap_or_default().to_owned();
    if file == "config.json" {
        return of_folder(address, stop).await;
    }
    if !file.ends_with(".gguf") || !is_plain_file(&file) {
        return Err(format!("{address} names neither a .gguf file nor a config.json; give one of these"));
    }
    let listed = ListedFile { file: file.clone(), url: address.to_owned(), ..ListedFile::default() };
    Ok(of_urls(file, vec![listed]))
}

/// A folder of safetensors, by the address of its configuration.
async fn of_folder(config_url: &str, stop: &AbortSignal) -> Result<Wanted, String> {
    let index_url = join(INDEX_NAME, config_url)?;
    let shards = match text_at(&index_url, stop).await {
        Ok(text) => shard_names(&index_url, text.as_bytes()).map_err(|error| error.to_string())?,
        Err(_) => vec!["model.safetensors".to_owned()],
    };
    let mut names = vec!["config.json".to_owned()];
    for name in OPTIONAL {
        let url = join(name, config_url)?;
        if is_there(&url, stop).await {
            names.push(name.to_owned());
        }
    }
    names.extend(shards);
    if let Some(name) = names.iter().find(|name| !is_plain_file(name)) {
        return Err(format!("{index_url} names {name:?}, which is no plain file name"));
    }
    let listed = |file: String| {
        let url = join(&file, config_url)?;
        Ok(ListedFile { file, url, ..ListedFile::default() })
    };
    let files = names.into_iter().map(listed).collect::<Result<_, String>>()?;
    let folder = config_url.trim_end_matches("/config.json").rsplit('/').next().unwrap_or(config_url);
    Ok(of_urls(folder.to_owned(), files))
}

async fn of_hub(name: &str, hub: &str, stop: &AbortSignal) -> Result<Wanted, String> {
    let (repo, file) = match name.trim().split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None => (name.trim(), None),
    };
    let is_repo = repo.split('/').count() == 2 && is_plain_file(repo);
    if !is_repo || file.is_some_and(|file| !is_plain_file(file)) {
        return Err(format!("{name:?} is no model of the hub; give OWNER/REPO or OWNER/REPO:file.gguf"));
    }
    let hub = hub.trim_end_matches('/');
    let url = format!("{hub}/api/models/{repo}?blobs=true");
    let text = text_at(&url, stop).await?;
    let repository: Repository = serde_json::from_slice(text.as_bytes())
        .map_err(|error| format!("{url} answers with no repository: {error}"))?;
    let names: Vec<String> = repository.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect();
    let chosen = match file {
        Some(file) if names.iter().any(|name| name == file) => vec![file.to_owned()],
        Some(file) => return Err(format!("{repo} has no file {file}; it has {}", names.join(", "))),
        None => files_of_model(&names).map_err(|error| format!("{repo}: {error}"))?,
    };
    let listed = |file: String| {
        let sibling = repository.siblings.iter().find(|sibling| sibling.rfilename == file);
        let lfs = sibling.and_then(|sibling| sibling.lfs.as_ref());
        let bytes = lfs.and_then(|lfs| lfs.size).or(sibling.and_then(|sibling| sibling.size)).unwrap_or(0);
        let sha256 = lfs.and_then(|lfs| lfs.sha256.clone());
        let url = format!("{hub}/{repo}/resolve/main/{file}");
        ListedFile { file, bytes, sha256, url }
    };
    Ok(of_urls(name.trim().to_owned(), chosen.into_iter().map(listed).collect()))
}

fn of_files(files: Vec<File>) -> Result<Wanted, String> {
    let names: Vec<String> = files.iter().map(File::name).collect();
    let chosen = files_of_model(&names).map_err(|_| {
        let dropped = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        format!("{dropped} make no model; drop one .gguf file, or config.json, tokenizer.json and the .safetensors files together")
    })?;
    let of_name = |name: &String| files.iter().find(|file| file.name() == *name).cloned();
    let chosen: Vec<File> = chosen.iter().filter_map(of_name).collect();
    let listed =
        |file: &File| ListedFile { file: file.name(), bytes: file.size() as u64, ..ListedFile::default() };
    let list: Vec<ListedFile> = chosen.iter().map(listed).collect();
    let identity: String = chosen
        .iter()
        .map(|file| format!("{}/{}/{}/", file.name(), file.size(), file.last_modified()))
        .collect();
    let name = list.iter().rev().find(|file| !file.file.ends_with(".json")).map(|file| file.file.clone());
    Ok(Wanted {
        key: key(&identity),
        list: ModelList { name: name.unwrap_or_default(), files: list, whole: false },
        origins: chosen.into_iter().map(|file| Some(Origin::File(file))).collect(),
    })
}

/// `name` beside `base`.
fn join(name: &str, base: &str) -> Result<String, String> {
    Url::new_with_base(name, base).map(|url| url.href()).map_err(|_| format!("{base:?} is no address"))
}

async fn is_there(url: &str, stop: &AbortSignal) -> bool {
    match fetch(url, 0, stop).await {
        Ok(response) => {
            let is_page = response.headers().get("content-type").ok().flatten();
            if let Some(body) = response.body() {
                // Asked only whether it is there.
                drop(body.cancel());
            }
            !is_page.is_some_and(|kind| kind.starts_with("text/html"))
        }
        Err(_) => false,
    }
}

async fn text_at(url: &str, stop: &AbortSignal) -> Result<String, String> {
    let response = fetch(url, 0, stop).await?;
    let text = JsFuture::from(response.text().map_err(|error| words(&error))?).await;
    let text = text.map_err(|error| format!("{url}: {}", words(&error)))?.as_string().unwrap_or_default();
    match text.len() > MAX_LIST_BYTES {
        true => Err(format!("{url} has {} bytes; at most {MAX_LIST_BYTES} are read", text.len())),
        false => Ok(text),
    }
}
