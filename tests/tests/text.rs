//! Text: ids and texts equal the reference, a user's text stays text, pieces join to the whole, and nothing hostile
//! gets more than a sentence.

mod chat;
mod detokenizer;
mod fixtures;
mod preparer;
mod tokenizer;
