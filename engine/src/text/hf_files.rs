//! A tokenizer from the files of a HuggingFace model folder.
//!
//! It never opens a file: bytes come in. Invariant: a part of `tokenizer.json` that this engine does not follow to the
//! letter is refused by name.

use serde_json::Value;
use tokenizers::Tokenizer as HfTokenizer;

use super::token_bytes::{LeadingSpace, Spelling};
use super::tokenizer::{MAX_VOCAB, Parts, malformed, unsupported};
use crate::error::LoadError;

const NORMALIZERS: [&str; 9] =
    ["Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Prepend", "Replace"];
const PRE_TOKENIZERS: [&str; 8] =
    ["Sequence", "ByteLevel", "Split", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"];

/// The folder's files, as far as the tokenizer needs them.
pub(super) struct HfFiles<'a> {
    pub(super) tokenizer_json: &'a [u8],
    pub(super) tokenizer_config: Option<&'a [u8]>,
    pub(super) generation_config: Option<&'a [u8]>,
    pub(super) config: Option<&'a [u8]>,
    pub(super) chat_template: Option<&'a str>,
}

impl HfFiles<'_> {
    pub(super) fn into_parts(self) -> Result<Parts, LoadError> {
        let json: Value = parse("tokenizer.json", self.tokenizer_json)?;
        check_parts(&json)?;
        let spelling = spelling(&json["decoder"])?;
        let inner = HfTokenizer::from_bytes(self.tokenizer_json)
            .map_err(|e| malformed(format!("tokenizer.json: {e}")))?;
        check_added_ids(&json, &inner)?;
        let tokens = token_table(&inner)?;

        let settings = optional("tokenizer_config.json", self.tokenizer_config)?;
        let generation = optional("generation_config.json", self.generation_config)?;
        let config = optional("config.json", self.config)?;
        let named = |key: &str| token_text(&settings[key]).and_then(|text| inner.token_to_id(text));
        let listed = |key: &str| -> Vec<u32> {
            [&generation[key], &config[key]].into_iter().flat_map(ids_in).collect()
        };
        let bos = named("bos_token").or_else(|| listed("bos_token_id").first().copied());
        let eos = named("eos_token").or_else(|| listed("eos_token_id").first().copied());
        let mut end_tokens = listed("eos_token_id");
        end_tokens.extend(named("eos_token"));
        if let Some(id) = end_tokens.iter().chain(&bos).find(|&&id| id as usize >= MAX_VOCAB) {
            return Err(malformed(format!("it names the token {id}, beyond any vocabulary")));
        }
        let add_bos = match settings["add_bos_token"].as_bool() {
            Some(asked) => asked,
            None => bos.is_some() && first_token_of_nothing(&inner) == bos,
        };
        let chat_template = match self.chat_template {
            Some(text) => Some(text.to_owned()),
            None => default_template(&settings["chat_template"]),
        };
        Ok(Parts {
            inner,
            sentence_piece: None,
            tokens,
            spelling,
            bos,
            eos,
            add_bos,
            end_tokens,
            chat_template,
        })
    }
}

fn parse(name: &str, bytes: &[u8]) -> Result<Value, LoadError> {
    serde_json::from_slice(bytes).map_err(|e| malformed(format!("{name}: {e}")))
}

fn optional(name: &str, bytes: Option<&[u8]>) -> Result<Value, LoadError> {
    bytes.map_or(Ok(Value::Null), |bytes| parse(name, bytes))
}

/// A number or a list of numbers.
fn ids_in(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(items) => items.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// A token is written as a string, or as an object with its `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// One template, or a list of named ones.
fn default_template(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let named = items.iter().find(|item| item["name"] == "default");
            named.and_then(|item| item["template"].as_str()).map(str::to_owned)
        }
        _ => None,
    }
}

/// What the tokenizer puts before an empty text.
fn first_token_of_nothing(inner: &HfTokenizer) -> Option<u32> {
    inner.encode_fast("", true).ok().and_then(|encoding| encoding.get_ids().first().copied())
}

fn check_parts(json: &Value) -> Result<(), LoadError> {
    let model = &json["model"];
    // Older files leave the type out; only a BPE has merges.
    let is_bpe = model["type"] == "BPE" || (model["type"].is_null() && model["merges"].is_array());
    if !is_bpe {
        return Err(unsupported(format!("its model is {}; known is BPE", model["type"])));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(unsupported(format!("its model has a {key}")));
        }
    }
    if model["dropout"].as_f64().is_some_and(|p| p != 0.0) {
        return Err(unsupported("its model drops merges at random (dropout)".to_owned()));
    }
    check_kinds("normalizer", &json["normalizer"], &NORMALIZERS)?;
    check_kinds("pre_tokenizer", &json["pre_tokenizer"], &PRE_TOKENIZERS)
}

fn check_kinds(what: &str, value: &Value, known: &[&str]) -> Result<(), LoadError> {
    let Some(kind) = value["type"].as_str() else {
        return if value.is_null() { Ok(()) } else { Err(malformed(format!("its {what} has no type"))) };
    };
    if !known.contains(&kind) {
        return Err(unsupported(format!("its {what} is {kind}; known are {}", known.join(", "))));
    }
    if value["pattern"]["String"] == "" {
        return Err(malformed(format!("its {what} looks for an empty text")));
    }
    let steps = [&value["normalizers"], &value["pretokenizers"]];
    steps
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .try_for_each(|step| check_kinds(what, step, known))
}

/// The library numbers added tokens itself where their text is not in the vocabulary.
fn check_added_ids(json: &Value, inner: &HfTokenizer) -> Result<(), LoadError> {
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let (text, id) = (token["content"].as_str().unwrap_or_default(), token["id"].as_u64());
        let found = inner.token_to_id(text).map(u64::from);
        if !text.is_empty() && found != id {
            return Err(malformed(format!(
                "tokenizer.json gives the added token {text:?} the id {id:?} and its vocabulary gives {found:?}"
            )));
        }
    }
    Ok(())
}

fn token_table(inner: &HfTokenizer) -> Result<Vec<Option<(String, bool)>>, LoadError> {
    let vocab = inner.get_vocab(true);
    let len = vocab.values().max().map_or(0, |&id| id as usize + 1);
    if len == 0 || len > MAX_VOCAB {
        return Err(unsupported(format!("its highest token id makes {len} tokens; 1 to {MAX_VOCAB} are")));
    }
    let mut tokens = vec![None; len];
    for (text, id) in vocab {
        tokens[id as usize] = Some((text, false));
    }
    for (id, token) in inner.get_added_tokens_decoder() {
        if let Some(slot) = tokens.get_mut(id as usize) {
            *slot = Some((token.content, token.special));
        }
    }
    Ok(tokens)
}

/// Reads the decoder as a rule for the bytes of one token.
fn spelling(decoder: &Value) -> Result<Spelling, LoadError> {
    let mut sentence = None;
    let mut byte_fallback = false;
    let mut leading = LeadingSpace::Keep;
    let one = [decoder.clone()];
    let steps = decoder["decoders"].as_array().map_or(one.as_slice(), Vec::as_slice);
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") if steps.len() == 1 => return Ok(Spelling::ByteLevel),
            Some("Fuse") => {}
            Some("ByteFallback") => byte_fallback = true,
            Some("Replace") if step["pattern"]["String"] == "\u{2581}" && step["content"] == " " => {
                sentence = Some(());
            }
            Some("Strip") if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                leading = LeadingSpace::DropOne;
            }
            Some("Metaspace") if step["replacement"] == "\u{2581}" => {
                sentence = Some(());
                if step["prepend_scheme"] != "never" && step["add_prefix_space"] != false {
                    leading = LeadingSpace::DropInFirstToken;
                }
            }
            _ => {
                return Err(unsupported(format!(
                    "its decoder has a step {step}; known are ByteLevel, Metaspace, and the SentencePiece steps \
                     Replace, ByteFallback, Fuse and Strip"
                )));
            }
        }
    }
    match sentence {
        Some(()) => Ok(Spelling::Sentence { byte_fallback, leading }),
        None => Err(unsupported("its decoder turns no character into a space".to_owned())),
    }
}
