//! Text to token ids, and what the ids mean: which are special, which end an answer, which begin a text.
//!
//! It never adds a token that is not in the text: whether a prompt begins with BOS is the preparer's business.
//! Invariant: every id it gives out is below [`Tokenizer::vocab_size`].

use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Token, Tokenizer as HfTokenizer,
};

use super::added_tokens::{AddedTokens, Matcher, Plain};
use super::gguf_vocab::GgufTokenizer;
use super::hf_files::HfFiles;
use super::quoting::MarkedText;
use super::sentence_piece::SentencePiece;
use super::token_bytes::{Spelling, TokenBytes};
use crate::error::LoadError;
use crate::order::sort_by_number;
use crate::request::RejectReason;

/// The largest vocabulary that is taken; the largest published ones have a quarter of it.
pub(super) const MAX_VOCAB: usize = 1 << 20;

/// Markers that end a turn in the chat formats in use. One of them ends an answer where it is a special token and the
/// model's template writes it.
const TURN_ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
];

pub(super) fn malformed(reason: String) -> LoadError {
    LoadError::Malformed { name: "the tokenizer".to_owned(), reason }
}

pub(super) fn unsupported(reason: String) -> LoadError {
    LoadError::Unsupported { name: "the tokenizer".to_owned(), reason }
}

/// What becomes of the text of a special token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// It is that token.
    Parse,
    /// It is text like any other.
    AsText,
}

/// What the two kinds of files are read into.
pub(super) struct Parts {
    pub(super) inner: HfTokenizer,
    /// Merges in place of the library's model.
    pub(super) sentence_piece: Option<SentencePiece>,
    /// `[vocab_size]` each id's text and whether it is special.
    pub(super) tokens: Vec<Option<(String, bool)>>,
    pub(super) spelling: Spelling,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
    /// From all files that name some; may repeat.
    pub(super) end_tokens: Vec<u32>,
    pub(super) chat_template: Option<String>,
}

/// A model's tokenizer. Immutable; share it in an `Arc`.
pub struct Tokenizer {
    inner: HfTokenizer,
    sentence_piece: Option<SentencePiece>,
    added: AddedTokens,
    token_bytes: TokenBytes,
    /// The texts of the special tokens.
    specials: Vec<String>,
    bos: Option<u32>,
    bos_text: String,
    eos_text: String,
    add_bos: bool,
    end_tokens: Vec<u32>,
    chat_template: Option<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, {} special)", self.vocab_size(), self.specials.len())
    }
}

impl Tokenizer {
    /// From a GGUF file's metadata. Refuses by name a tokenizer or pre-tokenizer that is not known.
    pub fn from_gguf(metadata: GgufTokenizer) -> Result<Self, LoadError> {
        Self::from_parts(metadata.into_parts()?)
    }

    /// From the files of a model folder, as bytes. `chat_template` is `chat_template.jinja`, which goes before the
    /// template in `tokenizer_config`.
    pub fn from_files(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        generation_config: Option<&[u8]>,
        config: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self, LoadError> {
        let files = HfFiles { tokenizer_json, tokenizer_config, generation_config, config, chat_template };
        Self::from_parts(files.into_parts()?)
    }

    fn from_parts(parts: Parts) -> Result<Self, LoadError> {
        if parts.tokens.len() > MAX_VOCAB {
            return Err(unsupported(format!(
                "it has {} tokens; at most {MAX_VOCAB} are",
                parts.tokens.len()
            )));
        }
        let mut added: Vec<_> = parts.inner.get_added_tokens_decoder().into_iter().collect();
        sort_by_number(&mut added, |(id, _)| u64::from(*id));
        let specials: Vec<String> = (added.iter())
            .filter(|(_, token)| token.special)
            .map(|(_, token)| token.content.clone())
            .collect();
        let added = AddedTokens::new(added, parts.inner.get_normalizer()).map_err(malformed)?;
        let text_of = |id: Option<u32>| {
            let token = id.and_then(|id| parts.tokens.get(id as usize)).and_then(Option::as_ref);
            token.map_or_else(String::new, |(text, _)| text.clone())
        };
        let mut end_tokens = parts.end_tokens;
        let template = parts.chat_template.as_deref().unwrap_or_default();
        for marker in TURN_ENDS {
            if template.contains(marker) && specials.iter().any(|special| special == marker) {
                end_tokens.extend(parts.inner.token_to_id(marker));
            }
        }
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Ok(Self {
            added,
            token_bytes: TokenBytes::new(&parts.tokens, parts.spelling),
            specials,
            bos: parts.bos,
            bos_text: text_of(parts.bos),
            eos_text: text_of(parts.eos),
            add_bos: parts.add_bos && parts.bos.is_some(),
            end_tokens,
            chat_template: parts.chat_template,
            sentence_piece: parts.sentence_piece,
            inner: parts.inner,
        })
    }

    /// The ids of `text`, and nothing before or after them: no BOS, no EOS.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, RejectReason> {
        self.encode_parts(
            text,
            match special {
                SpecialTokens::Parse => Plain::Nothing,
                SpecialTokens::AsText => Plain::Everything,
            },
        )
    }

    /// The ids of a rendered conversation, in which what users wrote is plain.
    pub(super) fn encode_marked(&self, marked: &MarkedText) -> Result<Vec<u32>, RejectReason> {
        self.encode_parts(&marked.text, Plain::Ranges(&marked.plain))
    }

    fn encode_parts(&self, text: &str, plain: Plain<'_>) -> Result<Vec<u32>, RejectReason> {
        self.run_pipeline(text, plain)
            .map_err(|e| RejectReason::Preparation(format!("the tokenizer refused the text: {e}")))
    }

    /// Added tokens first, then normaliser, pre-tokenizer and model on what lies between them.
    fn run_pipeline(&self, text: &str, plain: Plain<'_>) -> tokenizers::Result<Vec<u32>> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| cut(&self.added.raw, &piece, plain))?;
        let normalizer = self.inner.get_normalizer();
        pieces.split(|_, mut piece| {
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut piece)?;
            }
            cut(&self.added.normalized, &piece, Plain::Nothing)
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        let model = self.inner.get_model();
        pieces.tokenize(|piece| match &self.sentence_piece {
            None => model.tokenize(piece.get()),
            Some(model) => {
                let ids = model.tokenize(piece.get())?;
                Ok(ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect())
            }
        })?;
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        Ok(splits.iter().flat_map(|(_, _, tokens)| tokens.iter().flatten()).map(|token| token.id).collect())
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> u32 {
        self.token_bytes.len() as u32
    }

    /// The id of a token's text, as the vocabulary spells it.
    pub fn token_to_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The bytes that `id` stands for, which may be half a character: what it prints, or a special token's own text.
    /// Empty for an id outside the vocabulary.
    pub fn bytes_of(&self, id: u32) -> Vec<u8> {
        match self.is_special(id) {
            true => self.inner.id_to_token(id).unwrap_or_default().into_bytes(),
            false => self.token_bytes.get(id).to_vec(),
        }
    }

    /// Whether `id` is a marker that is never printed.
    pub fn is_special(&self, id: u32) -> bool {
        self.token_bytes.is_special(id)
    }

    /// The ids that end an answer, in rising order, from all places that name them.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// The token that begins a text, where the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether the model asks for [`Tokenizer::bos`] at the start of a prompt.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The text of the BOS token; empty where there is none.
    pub fn bos_text(&self) -> &str {
        &self.bos_text
    }

    /// The text of the EOS token; empty where there is none.
    pub fn eos_text(&self) -> &str {
        &self.eos_text
    }

    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The texts of the special tokens.
    pub fn special_texts(&self) -> &[String] {
        &self.specials
    }

    pub(super) fn token_bytes(&self) -> &TokenBytes {
        &self.token_bytes
    }
}

/// Cuts one piece at its added tokens.
fn cut(
    matcher: &Matcher,
    piece: &NormalizedString,
    plain: Plain<'_>,
) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
    let text = piece.get();
    (matcher.split(text, plain).into_iter())
        .map(|(id, range)| {
            let token = id.map(|id| vec![Token::new(id, text[range.clone()].to_owned(), (0, range.len()))]);
            let slice = piece.slice(tokenizers::tokenizer::normalizer::Range::Normalized(range));
            Ok((slice.ok_or("a token was cut inside a character")?, token))
        })
        .collect()
}
