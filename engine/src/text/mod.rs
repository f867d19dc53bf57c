//! Text in, token ids out, and back: chat templates, tokenizers, the incremental detokenizer.
