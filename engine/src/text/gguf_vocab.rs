//! A tokenizer from a GGUF file's metadata.
//!
//! It never parses the file: a [`GgufTokenizer`] is what a parser found. Invariant: a pre-tokenizer that is not known
//! is refused by name, for with a wrong one a model answers worse and nothing else shows it.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as HfTokenizer,
};

use super::sentence_piece::SentencePiece;
use super::token_bytes::{LeadingSpace, Spelling};
use super::tokenizer::{MAX_VOCAB, Parts, malformed, unsupported};
use crate::error::LoadError;

/// What a GGUF file says about its tokenizer: the values of its `tokenizer.*` keys, unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// `[vocab_size]` `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`, most important first; two tokens with a space between.
    pub merges: Vec<String>,
    /// `[vocab_size]` or empty: `tokenizer.ggml.token_type`.
    pub token_types: Vec<i32>,
    /// `[vocab_size]` or empty: `tokenizer.ggml.scores`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: the end of a turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: the end of a message that asks for a tool.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// The largest published vocabularies have some thousand added tokens of some ten bytes.
const MAX_ADDED_BYTES: usize = 1 << 20;

// The split patterns below are facts of the models that were trained with them: each is the one in the model's own
// tokenizer.json, and any other spelling of it would have to be proved equal.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a byte-level tokenizer cuts text before it merges.
struct Pre {
    steps: Vec<PreTokenizerWrapper>,
    nfc: bool,
    /// A word that is a token is taken whole, without merging.
    ignore_merges: bool,
    /// What holds where the file does not say.
    add_bos: bool,
}

impl Pre {
    fn by_name(name: &str) -> Result<Self, LoadError> {
        let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
        let plain = |steps| Self { steps, nfc: false, ignore_merges: false, add_bos: false };
        Ok(match name {
            "gpt-2" | "gpt2" | "default" => plain(vec![gpt2()]),
            "smollm" | "starcoder" | "refact" | "codeshell" => {
                plain(vec![PreTokenizerWrapper::from(Digits::new(true)), gpt2()])
            }
            "llama-bpe" | "llama3" | "llama-v3" => {
                Self { ignore_merges: true, add_bos: true, ..plain(split_then_bytes(LLAMA3)?) }
            }
            "smaug-bpe" | "dbrx" => plain(split_then_bytes(LLAMA3)?),
            "qwen2" | "deepseek-r1-qwen" => Self { nfc: true, ..plain(split_then_bytes(QWEN2)?) },
            "tekken" => Self { ignore_merges: true, add_bos: true, ..plain(split_then_bytes(TEKKEN)?) },
            other => {
                return Err(unsupported(format!(
                    "its pre-tokenizer is {other:?}; known are gpt-2, smollm, starcoder, refact, codeshell, llama-bpe, \
                     smaug-bpe, dbrx, qwen2, deepseek-r1-qwen and tekken"
                )));
            }
        })
    }
}

fn split_then_bytes(pattern: &str) -> Result<Vec<PreTokenizerWrapper>, LoadError> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| unsupported(format!("its pre-tokenizer does not compile: {e}")))?;
    Ok(vec![split.into(), ByteLevel::new(false, true, false).into()])
}

/// One of the two kinds of tokenizer, before its added tokens.
struct Built {
    inner: HfTokenizer,
    sentence_piece: Option<SentencePiece>,
    spelling: Spelling,
    /// What holds where the file does not say.
    add_bos: bool,
}

impl GgufTokenizer {
    /// Checks the values against each other and builds the tokenizer.
    pub(super) fn into_parts(self) -> Result<Parts, LoadError> {
        self.check()?;
        let mut built = match self.model.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => {
                return Err(unsupported(format!("its tokenizer is {other:?}; known are gpt2 and llama")));
            }
        };
        let added: Vec<AddedToken> = (self.tokens.iter().zip(&self.token_types))
            .filter(|(text, kind)| !text.is_empty() && matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
            .map(|(text, kind)| AddedToken::from(text.clone(), *kind != USER_DEFINED).normalized(false))
            .collect();
        built.inner.add_tokens(&added);
        let mut tokens = vec![None; self.tokens.len()];
        for (id, text) in self.tokens.iter().enumerate() {
            let kind = self.token_types.get(id).copied().unwrap_or(NORMAL);
            tokens[id] = Some((text.clone(), matches!(kind, UNKNOWN | CONTROL)));
        }
        Ok(Parts {
            inner: built.inner,
            sentence_piece: built.sentence_piece,
            tokens,
            spelling: built.spelling,
            bos: self.bos,
            eos: self.eos,
            add_bos: self.add_bos.unwrap_or(built.add_bos),
            end_tokens: [self.eos, self.eot, self.eom].into_iter().flatten().collect(),
            chat_template: self.chat_template,
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        let vocab_size = self.tokens.len();
        if vocab_size == 0 {
            return Err(malformed("it lists no tokens".to_owned()));
        }
        // Before anything is built of them: added tokens become automata, many times their size.
        if vocab_size > MAX_VOCAB {
            return Err(unsupported(format!("it has {vocab_size} tokens; at most {MAX_VOCAB} are")));
        }
        let is_added = |kind: &i32| matches!(*kind, UNKNOWN | CONTROL | USER_DEFINED);
        let added = self.tokens.iter().zip(&self.token_types).filter(|(_, kind)| is_added(kind));
        let added_bytes: usize = added.map(|(text, _)| text.len()).sum();
        if added_bytes > MAX_ADDED_BYTES {
            return Err(unsupported(format!(
                "its special and user-defined tokens take {added_bytes} bytes; at most {MAX_ADDED_BYTES} are"
            )));
        }
        for (what, len) in [("token types", self.token_types.len()), ("scores", self.scores.len())] {
            if len != 0 && len != vocab_size {
                return Err(malformed(format!("it has {len} {what} for {vocab_size} tokens")));
            }
        }
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unk),
            ("eot", self.eot),
            ("eom", self.eom),
        ];
        for (name, id) in named {
            if let Some(id) = id.filter(|&id| id as usize >= vocab_size) {
                return Err(malformed(format!("its {name} token is {id} and it has {vocab_size} tokens")));
            }
        }
        Ok(())
    }

    /// Text to id; where two ids share a text, the first has it.
    fn vocab<S: std::hash::BuildHasher + Default>(&self) -> HashMap<String, u32, S> {
        let ids = 0..u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        ids.zip(&self.tokens).rev().map(|(id, text)| (text.clone(), id)).collect()
    }

    fn byte_level(&self) -> Result<Built, LoadError> {
        let pre = Pre::by_name(self.pre.as_deref().unwrap_or("default"))?;
        let merges = (self.merges.iter().enumerate())
            .map(|(i, merge)| match merge.split_once(' ') {
                Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                    Ok((left.to_owned(), right.to_owned()))
                }
                _ => Err(malformed(format!("its merge {i} is {merge:?}, not two tokens"))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let model = BPE::builder()
            .vocab_and_merges(self.vocab(), merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|e| malformed(e.to_string()))?;
        let mut inner = HfTokenizer::new(model);
        if pre.nfc {
            inner.with_normalizer(Some(NFC));
        }
        inner.with_pre_tokenizer(Some(Sequence::new(pre.steps)));
        Ok(Built { inner, sentence_piece: None, spelling: Spelling::ByteLevel, add_bos: pre.add_bos })
    }

    fn sentence_piece(&self) -> Result<Built, LoadError> {
        if self.scores.is_empty() {
            return Err(malformed("a llama tokenizer needs scores and it has none".to_owned()));
        }
        if let Some(id) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(malformed(format!("the score of token {id} is not a number")));
        }
        let space_prefix = self.add_space_prefix.unwrap_or(true);
        // The library's BPE only holds the names of the tokens here.
        let names = BPE::builder().vocab_and_merges(self.vocab(), Vec::new());
        let mut inner = HfTokenizer::new(names.build().map_err(|e| malformed(e.to_string()))?);
        let tokens = || (0..).zip(&self.tokens).map(|(id, text): (u32, &String)| (text.as_str(), id));
        let kind = |id: u32| self.token_types.get(id as usize).copied().unwrap_or(NORMAL);
        let model = SentencePiece::new(
            tokens()
                .filter(|&(_, id)| kind(id) == NORMAL)
                .map(|(text, id)| (text, id, self.scores[id as usize])),
            tokens().filter(|&(_, id)| kind(id) == BYTE),
            self.unk,
        );
        let replace = Replace::new(" ", "\u{2581}").map_err(|e| malformed(e.to_string()))?;
        let mut steps = vec![NormalizerWrapper::from(replace)];
        if space_prefix {
            steps.insert(0, Prepend::new("\u{2581}".to_owned()).into());
        }
        inner.with_normalizer(Some(Normalizers::new(steps)));
        let leading = if space_prefix { LeadingSpace::DropOne } else { LeadingSpace::Keep };
        let spelling = Spelling::Sentence { byte_fallback: true, leading };
        Ok(Built { inner, sentence_piece: Some(model), spelling, add_bos: true })
    }
}
