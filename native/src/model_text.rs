//! A model's files opened for the engine: the checkpoint, and the tokenizer that belongs to it.
//!
//! Reads headers and text only; the weights are read when a device asks for them.

use std::path::Path;
use std::sync::Arc;

use firstlight_engine::error::LoadError;
use firstlight_engine::model::{Checkpoint, GgufFile};
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
        let mut tokens = self.checkpoint.config().eos_tokens.clone();
        let more = self.tokenizer.iter().flat_map(|tokenizer| tokenizer.end_tokens());
        tokens.extend(more);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
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
            let tokenizer = checkpoint.gguf().map(gguf_tokenizer).transpose()?.flatten();
            Ok(OpenModel { tokenizer: with_tokenizer(tokenizer)?, checkpoint })
        }
        ModelFiles::Safetensors { folder, shards } => {
            let config = required(&folder.join("config.json"))?;
            let sources = shards.iter().map(|path| FileSource::open(path)).collect::<Result<_, _>>()?;
            let checkpoint = pollster::block_on(Checkpoint::open_safetensors(&config, sources))?;
            Ok(OpenModel { tokenizer: folder_tokenizer(folder, &config)?, checkpoint })
        }
    }
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

/// The `tokenizer.*` keys; `None` where the file has no tokenizer.
fn gguf_tokenizer(file: &GgufFile) -> Result<Option<GgufTokenizer>, LoadError> {
    let Some(model) = file.str("tokenizer.ggml.model")? else { return Ok(None) };
    let id = |name: &str| file.u32(&format!("tokenizer.ggml.{name}_token_id"));
    let types = file.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
    // A type outside i32 is none that anybody knows: it becomes one that the tokenizer refuses or ignores as unknown.
    let token_types = types.iter().map(|kind| i32::try_from(*kind).unwrap_or(i32::MAX)).collect();
    let scores = file.floats("tokenizer.ggml.scores")?.unwrap_or_default();
    Ok(Some(GgufTokenizer {
        model: model.to_owned(),
        pre: file.str("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: file.strings("tokenizer.ggml.tokens")?.unwrap_or_default(),
        merges: file.strings("tokenizer.ggml.merges")?.unwrap_or_default(),
        token_types,
        scores,
        bos: id("bos")?,
        eos: id("eos")?,
        unk: id("unknown")?,
        eot: id("eot")?,
        eom: id("eom")?,
        add_bos: file.bool("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?,
        chat_template: file.str("tokenizer.chat_template")?.map(str::to_owned),
    }))
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
