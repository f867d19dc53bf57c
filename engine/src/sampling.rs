//! Choosing a token.
