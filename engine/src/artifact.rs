//! A model as its files make it: what the weights' side and the text's side of one artifact say together.
//!
//! The one place that names both `model` and `text`. Invariant: it only moves data; neither side learns of the other.

use crate::error::LoadError;
use crate::model::{GgufFile, ModelConfig};
use crate::text::{GgufTokenizer, Tokenizer};

/// The tokenizer that a GGUF file carries in its `tokenizer.*` keys; `None` where it carries none.
///
/// # Errors
/// [`LoadError`] where a key has another type than it should.
pub fn gguf_tokenizer(file: &GgufFile) -> Result<Option<GgufTokenizer>, LoadError> {
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

/// Tokens that end an answer, in rising order: those that the configuration names and those that the tokenizer knows.
pub fn end_tokens(config: &ModelConfig, tokenizer: Option<&Tokenizer>) -> Vec<u32> {
    let mut tokens = config.eos_tokens.clone();
    tokens.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.end_tokens()));
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}
