//! Text: ids and texts equal the reference, a user's text stays text, pieces join to the whole, and nothing hostile
//! gets more than a sentence.

// A fixture that cannot be made is a failed test.
#![allow(clippy::unwrap_used)]

mod chat;
mod detokenizer;
pub(crate) mod fixtures;
mod preparer;
mod screen;
mod tokenizer;
