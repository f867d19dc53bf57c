//! Tokenizers and conversations for the claims about text.

use std::sync::{Arc, OnceLock};

use firstlight_engine::artifact::gguf_tokenizer;
use firstlight_engine::clock::ManualClock;
use firstlight_engine::model::GgufFile;
use firstlight_engine::request::{HostStamps, RejectReason};
use firstlight_engine::text::{
    ChatMessage, GgufTokenizer, PrepareOptions, Prepared, Preparer, PromptInput, Tokenizer,
};
use firstlight_tests::{FileSource, TestRng, default_model_path, golden_path};

pub(crate) fn tokenizer_json() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| std::fs::read(golden_path("tokenizer.json")).unwrap())
}

pub(crate) fn default_model_metadata() -> GgufTokenizer {
    let source = FileSource::open(&default_model_path()).unwrap();
    let file = pollster::block_on(GgufFile::open(&source)).unwrap();
    gguf_tokenizer(&file).unwrap().unwrap()
}

/// The default model's tokenizer, from the GGUF file.
pub(crate) fn from_gguf() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    Arc::clone(TOKENIZER.get_or_init(|| Arc::new(Tokenizer::from_gguf(default_model_metadata()).unwrap())))
}

/// The same tokenizer in HuggingFace's form, with the GGUF file's template.
pub(crate) fn from_files() -> Tokenizer {
    let template = default_model_metadata().chat_template.unwrap();
    let config = br#"{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": false}"#;
    Tokenizer::from_files(tokenizer_json(), Some(config), None, None, Some(&template)).unwrap()
}

/// The library's own reading of the same file: the reference.
pub(crate) fn reference() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(tokenizer_json()).unwrap()
}

/// A byte-level tokenizer without merges: special tokens first, then `words`, then one token a byte.
pub(crate) fn tiny(specials: &[&str], words: &[&str]) -> GgufTokenizer {
    let mut alphabet: Vec<char> = Vec::new();
    let mut next = 0x100_u32;
    for byte in 0..=255_u8 {
        if byte.is_ascii_graphic() || (0xA1..=0xAC).contains(&byte) || byte >= 0xAE {
            alphabet.push(char::from(byte));
        } else {
            alphabet.extend(char::from_u32(next));
            next += 1;
        }
    }
    let spell = |word: &&str| word.bytes().map(|b| alphabet[usize::from(b)]).collect::<String>();
    let mut tokens: Vec<String> = specials.iter().map(|s| (*s).to_owned()).collect();
    tokens.extend(words.iter().map(spell));
    tokens.extend(alphabet.iter().map(char::to_string));
    let mut token_types = vec![1; tokens.len()];
    token_types[..specials.len()].fill(3);
    GgufTokenizer {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        ..Default::default()
    }
}

/// The usual markers of a chat: `<s>` is 0, `</s>` 1, `<|im_start|>` 2, `<|im_end|>` 3.
pub(crate) fn tiny_chat(template: &str) -> GgufTokenizer {
    GgufTokenizer {
        bos: Some(0),
        eos: Some(1),
        chat_template: Some(template.to_owned()),
        ..tiny(&["<s>", "</s>", "<|im_start|>", "<|im_end|>"], &[])
    }
}

pub(crate) fn preparer(tokenizer: Arc<Tokenizer>) -> Preparer {
    let vocab_size = tokenizer.vocab_size();
    Preparer::new(Some(tokenizer), vocab_size, 1 << 23).unwrap()
}

pub(crate) fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: content.to_owned() }
}

pub(crate) fn prepare(
    preparer: &Preparer,
    input: PromptInput,
    parse_special: bool,
) -> Result<Prepared, RejectReason> {
    let options = PrepareOptions { parse_special, now_unix_seconds: 1_700_000_000 };
    preparer.prepare(input, &options, &ManualClock::new(), &mut HostStamps::default())
}

/// Random text out of everything that has ever broken a tokenizer.
pub(crate) fn random_text(rng: &mut TestRng, specials: &[&str]) -> String {
    const SNIPPETS: [&str; 44] = [
        " ",
        "  ",
        "    ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\u{a0}",
        "\u{3000}",
        "\u{85}",
        "\u{feff}",
        "the",
        "The",
        "HELLO",
        "it's",
        "I'VE",
        "we'll",
        "'",
        "don't",
        "ſ's",
        "1",
        "12345",
        "3.14",
        "½",
        "Ⅷ",
        "٣٤",
        "x²",
        "_",
        "->",
        "!?...",
        "日本語",
        "한국어",
        "русский",
        "العربية",
        "é",
        "e\u{301}",
        "ﬁ",
        "😀",
        "👨\u{200d}👩\u{200d}👧",
        "🇫🇷",
        "Ġ",
        "\u{0}",
        "\u{F0000}",
    ];
    let mut text = String::new();
    for _ in 0..rng.below(24) {
        match rng.below(8) {
            0 => text.extend(char::from_u32(rng.below(0x11_0000) as u32)),
            1 => text.extend(char::from_u32(rng.below(0x80) as u32)),
            2 if !specials.is_empty() => text.push_str(rng.pick(specials)),
            _ => text.push_str(rng.pick(&SNIPPETS)),
        }
    }
    text
}
