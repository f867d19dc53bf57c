//! Text in, token ids out, and back: chat templates, tokenizers, the incremental detokenizer.
//!
//! It never opens a file, reads a clock or knows a request: bytes, times and limits are arguments. Invariant:
//! nothing a user writes into a message becomes a special token unless the caller asked for that.

mod added_tokens;
mod answer_text;
mod calendar;
mod chat_template;
mod detokenizer;
mod gguf_vocab;
mod hf_files;
mod preparer;
mod quoting;
mod sentence_piece;
mod token_bytes;
mod tokenizer;

pub use answer_text::AnswerText;
pub use chat_template::{ChatMessage, ChatTemplate, TemplateInput};
pub use detokenizer::{Detokenizer, Piece};
pub use gguf_vocab::GgufTokenizer;
pub use preparer::{PrepareOptions, Prepared, Preparer, PromptInput};
pub use tokenizer::{SpecialTokens, Tokenizer};
