//! A model's files opened for the engine: the checkpoint, and the tokenizer that belongs to it.
//!
//! Reads headers and text only; the weights are read when a device asks for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firstlight_engine::artifact;
use firstlight_engine::error::LoadError;
use firstlight_engine::model::Checkpoint;
use firstlight_engine::text::{GgufTokenizer, Tokenizer};

use crate::models::ModelFiles;
use crate::source::FileSource;

/// The most bytes of one text file of a model folder: the largest published tokenizers have some 35 MB.
const MAX_TEXT_FILE_BYTES: u64 = 256 << 20;

/// A model whose headers are read and checked.
pub struct OpenModel {
    /// Configuration and tensors.
    pub checkpoint: Checkpoint<FileSource>,
    /// Absent where the folder has no tokenizer.json.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl OpenModel {
    /// Tokens that end an answer, from the configuration and the tokenizer.
    pub fn end_tokens(&self) -> Vec<u32> {
        artifact::end_tokens(self.checkpoint.config(), self.tokenizer.as_deref())
    }
}

/// Opens the files of a model.
///
/// # Errors
/// What is missing, damaged or not supported, with the file's name.
pub fn open(files: &ModelFiles) -> Result<OpenModel, LoadError> {
    match files {
        ModelFiles::Gguf(path) => {
            let checkpoint = pollster::block_on(Checkpoint::open_gguf(FileSource::open(path)?))?;
            let tokenizer = checkpoint.gguf().map(artifact::gguf_tokenizer).transpose()?.flatten();
            Ok(OpenModel { tokenizer: with_tokenizer(tokenizer)?, checkpoint })
        }
        ModelFiles::Safetensors { folder, shards } => {
            open_folder(folder, shards).map_err(|error| with_folder(error, folder))
        }
    }
}

fn open_folder(folder: &Path, shards: &[PathBuf]) -> Result<OpenModel, LoadError> {
    let config = required(&folder.join("config.json"))?;
    let sources = shards.iter().map(|path| FileSource::open(path)).collect::<Result<_, _>>()?;
    let checkpoint = pollster::block_on(Checkpoint::open_safetensors(&config, sources))?;
    Ok(OpenModel { tokenizer: folder_tokenizer(folder, &config)?, checkpoint })
}

/// The engine knows a text file by its bare name; a person has several folders with a config.json.
fn with_folder(mut error: LoadError, folder: &Path) -> LoadError {
    let (LoadError::Read { name, .. }
    | LoadError::Malformed { name, .. }
    | LoadError::Unsupported { name, .. }
    | LoadError::Activations { name, .. }) = &mut error;
    let path = folder.join(&*name);
    if path.is_file() {
        *name = path.display().to_string();
    }
    error
}

fn with_tokenizer(metadata: Option<GgufTokenizer>) -> Result<Option<Arc<Tokenizer>>, LoadError> {
    metadata.map(Tokenizer::from_gguf).transpose().map(|tokenizer| tokenizer.map(Arc::new))
}

fn folder_tokenizer(folder: &Path, config: &[u8]) -> Result<Option<Arc<Tokenizer>>, LoadError> {
    let Some(json) = optional(&folder.join("tokenizer.json"))? else { return Ok(None) };
    let settings = optional(&folder.join("tokenizer_config.json"))?;
    let generation = optional(&folder.join("generation_config.json"))?;
    let template = optional(&folder.join("chat_template.jinja"))?;
    let template = template.as_deref().map(String::from_utf8_lossy);
    let tokenizer = Tokenizer::from_files(
        &json,
        settings.as_deref(),
        generation.as_deref(),
        Some(config),
        template.as_deref(),
    )?;
    Ok(Some(Arc::new(tokenizer)))
}

fn required(path: &Path) -> Result<Vec<u8>, LoadError> {
    optional(path)?.ok_or_else(|| LoadError::Read {
        name: path.display().to_string(),
        reason: "there is no such file".into(),
    })
}

fn optional(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let failed = |reason: String| LoadError::Read { name: path.display().to_string(), reason };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_TEXT_FILE_BYTES => {
            Err(failed(format!("it has {} bytes; at most {MAX_TEXT_FILE_BYTES} are read", metadata.len())))
        }
        Ok(_) => std::fs::read(path).map(Some).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}
