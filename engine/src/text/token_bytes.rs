//! The bytes that each token prints, worked out once when the tokenizer is loaded.
//!
//! It never decodes UTF-8: a token may hold half a character, and only the detokenizer sees enough to join the halves.
//! Invariant: the concatenated bytes of a sequence are what a whole-sequence decode turns into text.

/// How a tokenizer spells bytes in its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's: every byte has a printable character of its own.
    ByteLevel,
    /// SentencePiece's: U+2581 is a space; with `byte_fallback`, `<0x0A>` is a byte.
    Sentence {
        /// Whether `<0xHH>` stands for a byte.
        byte_fallback: bool,
        /// What becomes of the space that the encoder put before the text.
        leading: LeadingSpace,
    },
}

/// What a decoder does with the space at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadingSpace {
    /// Prints it.
    Keep,
    /// Drops one.
    DropOne,
    /// Drops all in the first token.
    DropInFirstToken,
}

/// `[vocab_size]` byte strings, and which of the tokens are special.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// `[vocab_size + 1]` where each token's bytes start.
    starts: Vec<usize>,
    special: Vec<bool>,
    leading: LeadingSpace,
}

impl TokenBytes {
    /// From each id's text and whether it is special; an id without a token prints nothing.
    pub(super) fn new(tokens: &[Option<(String, bool)>], spelling: Spelling) -> Self {
        let alphabet = byte_level_alphabet();
        let mut table = Self {
            bytes: Vec::new(),
            starts: vec![0],
            special: Vec::with_capacity(tokens.len()),
            leading: match spelling {
                Spelling::ByteLevel => LeadingSpace::Keep,
                Spelling::Sentence { leading, .. } => leading,
            },
        };
        for token in tokens {
            if let Some((text, false)) = token {
                match spelling {
                    Spelling::ByteLevel => push_byte_level(&mut table.bytes, text, &alphabet),
                    Spelling::Sentence { byte_fallback, .. } => {
                        push_sentence(&mut table.bytes, text, byte_fallback);
                    }
                }
            }
            table.starts.push(table.bytes.len());
            table.special.push(matches!(token, Some((_, true))));
        }
        table
    }

    /// What `id` prints; nothing for special tokens and for ids outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start..end],
            _ => &[],
        }
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(super) fn len(&self) -> usize {
        self.special.len()
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    pub(super) fn leading(&self) -> LeadingSpace {
        self.leading
    }
}

/// Bytes that are printable in Latin-1 stand for themselves; the others get, in order, the characters from U+0100 on.
fn byte_level_alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 256];
    for byte in 0..=255_u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            alphabet[usize::from(byte)] = Some(byte);
        } else {
            alphabet.push(Some(byte));
        }
    }
    alphabet
}

/// A token with a character outside the alphabet is an added one, spelt as itself.
fn push_byte_level(out: &mut Vec<u8>, text: &str, alphabet: &[Option<u8>]) {
    let start = out.len();
    for c in text.chars() {
        match alphabet.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

fn push_sentence(out: &mut Vec<u8>, text: &str, byte_fallback: bool) {
    if byte_fallback && let Some(byte) = fallback_byte(text) {
        out.push(byte);
    } else {
        out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes());
    }
}

/// The byte that `<0xHH>` stands for.
pub(super) fn fallback_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
