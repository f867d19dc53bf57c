//! Token ids equal the reference, from both kinds of files; what a file must not say is refused by name.

use std::collections::HashMap;

use firstlight_engine::text::{GgufTokenizer, PromptInput, SpecialTokens, Tokenizer};
use firstlight_tests::{TestRng, golden_path};
use serde_json::{Value, json};

use super::fixtures::*;

#[test]
fn golden_prompts_give_the_reference_ids_and_the_reference_text() {
    let golden: Value = serde_json::from_slice(&std::fs::read(golden_path("golden.json")).unwrap()).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 8);
    for tokenizer in [from_gguf(), from_files().into()] {
        let preparer = preparer(tokenizer);
        for prompt in prompts {
            let name = prompt["name"].as_str().unwrap();
            let text = prompt["text"].as_str().unwrap();
            let input = match &prompt["source"] {
                Value::String(text) => PromptInput::Raw(text.clone()),
                turns => PromptInput::Chat(
                    (turns.as_array().unwrap().iter())
                        .map(|m| message(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
                        .collect(),
                ),
            };
            let is_chat = matches!(input, PromptInput::Chat(_));
            let prepared = prepare(&preparer, input, false).unwrap();
            let expected: Vec<u32> = serde_json::from_value(prompt["input_ids"].clone()).unwrap();
            assert_eq!(prepared.prompt, expected, "{name}");
            assert_eq!(prepared.rendered.as_deref(), is_chat.then_some(text), "{name}");
            // The rendered text, sent raw, is the same prompt: its special tokens are parsed and none is added.
            let raw = prepare(&preparer, PromptInput::Raw(text.to_owned()), false).unwrap();
            assert_eq!(raw.prompt, expected, "{name} raw");
        }
    }
}

#[test]
fn random_texts_give_the_ids_of_the_reference_tokenizer() {
    let specials = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<repo_name>", "<|im_", "end|>", "<"];
    let parsing = reference();
    let mut plain = reference();
    plain.set_encode_special_tokens(true);
    let ours = [from_gguf(), from_files().into()];
    let mut rng = TestRng::new(20_261_129);
    for i in 0..4000 {
        let text = random_text(&mut rng, &specials);
        for (reference, special) in [(&parsing, SpecialTokens::Parse), (&plain, SpecialTokens::AsText)] {
            let expected = reference.encode_fast(text.as_str(), false).unwrap();
            for tokenizer in &ours {
                let ids = tokenizer.encode(&text, special).unwrap();
                assert_eq!(ids, expected.get_ids(), "text {i} of seed 20261129, {special:?}: {text:?}");
            }
        }
    }
}

#[test]
fn pre_tokenizers_cut_as_their_models_do() {
    // One merge for each pair of equal or neighbouring characters: the ids then show where words were cut.
    let pieces = |pre: &str, text: &str, words: &[&str], merges: &[&str]| -> Vec<String> {
        let mut metadata = tiny(&[], words);
        metadata.pre = Some(pre.to_owned());
        metadata.merges = merges.iter().map(|m| (*m).to_owned()).collect();
        let tokens = metadata.tokens.clone();
        let ids = Tokenizer::from_gguf(metadata).unwrap().encode(text, SpecialTokens::Parse).unwrap();
        ids.into_iter().map(|id| tokens[id as usize].clone()).collect()
    };
    let digits = |pre: &str| pieces(pre, "1234", &["12", "34", "123"], &["1 2", "3 4", "12 3"]);
    let check = |pre: &str, expected: &[&str]| assert_eq!(digits(pre), expected, "{pre}");
    check("gpt-2", &["12", "34"]);
    check("default", &["12", "34"]);
    check("smollm", &["1", "2", "3", "4"]);
    check("starcoder", &["1", "2", "3", "4"]);
    check("llama-bpe", &["123", "4"]);
    check("smaug-bpe", &["123", "4"]);
    check("qwen2", &["1", "2", "3", "4"]);
    check("tekken", &["1", "2", "3", "4"]);
    // Llama 3 takes a word that is a token whole, also where no merges lead to it.
    assert_eq!(pieces("llama-bpe", "xyz", &["xyz"], &[]), ["xyz"]);
    assert_eq!(pieces("smaug-bpe", "xyz", &["xyz"], &[]), ["x", "y", "z"]);
    // Qwen's tokenizers compose characters first.
    assert_eq!(pieces("qwen2", "e\u{301}", &[], &[]), pieces("qwen2", "é", &[], &[]));
    assert_ne!(pieces("smollm", "e\u{301}", &[], &[]), pieces("smollm", "é", &[], &[]));
}

/// SentencePiece's rule, said as plainly as possible: of all neighbours whose union is a token, merge those with the
/// best score, the leftmost of equals, until there are none.
fn merge_by_score(text: &str, scores: &HashMap<String, (u32, f32)>, byte_id: impl Fn(u8) -> u32) -> Vec<u32> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..symbols.len() {
            if let Some(&(_, score)) = scores.get(&(symbols[i - 1].clone() + &symbols[i]))
                && best.is_none_or(|(found, _)| score > found)
            {
                best = Some((score, i));
            }
        }
        let Some((_, i)) = best else { break };
        let right = symbols.remove(i);
        symbols[i - 1].push_str(&right);
    }
    let spell = |symbol: &String| match scores.get(symbol) {
        Some(&(id, _)) => vec![id],
        None => symbol.bytes().map(&byte_id).collect(),
    };
    symbols.iter().flat_map(spell).collect()
}

fn sentence_piece(seed: u64, add_space_prefix: bool) -> (GgufTokenizer, HashMap<String, (u32, f32)>) {
    let mut rng = TestRng::new(seed);
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, 3, 3];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.resize(tokens.len(), 6);
    let mut scores = vec![0.0; tokens.len()];
    let mut words = HashMap::new();
    for len in [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 6] {
        let word: String = (0..len).map(|_| rng.pick(&['\u{2581}', 'a', 'b', 'é'])).collect();
        let score = -(rng.below(10) as f32);
        if !words.contains_key(&word) {
            words.insert(word.clone(), (tokens.len() as u32, score));
            tokens.push(word);
            scores.push(score);
        }
    }
    token_types.resize(tokens.len(), 1);
    let metadata = GgufTokenizer {
        model: "llama".into(),
        tokens,
        token_types,
        scores,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_space_prefix: Some(add_space_prefix),
        ..Default::default()
    };
    (metadata, words)
}

#[test]
fn sentence_piece_merges_by_score_from_the_left() {
    for seed in 0..300 {
        let (metadata, words) = sentence_piece(seed, seed % 2 == 0);
        let tokenizer = Tokenizer::from_gguf(metadata).unwrap();
        let mut rng = TestRng::new(seed + 1000);
        for _ in 0..20 {
            let text: String =
                (0..rng.below(20)).map(|_| rng.pick(&[' ', 'a', 'a', 'b', 'é', '語', '\n'])).collect();
            let mut normal = text.replace(' ', "\u{2581}");
            if seed % 2 == 0 && !text.is_empty() {
                normal.insert(0, '\u{2581}');
            }
            let expected = merge_by_score(&normal, &words, |byte| 3 + u32::from(byte));
            let ids = tokenizer.encode(&text, SpecialTokens::Parse).unwrap();
            assert_eq!(ids, expected, "seed {seed}, {text:?}");
        }
    }
}

#[test]
fn sentence_piece_markers_are_special_only_when_parsed() {
    let (metadata, _) = sentence_piece(1, false);
    let tokenizer = Tokenizer::from_gguf(metadata).unwrap();
    assert!(tokenizer.adds_bos());
    let bytes = |text: &str| text.bytes().map(|b| 3 + u32::from(b)).collect::<Vec<_>>();
    assert_eq!(tokenizer.encode("</s>", SpecialTokens::Parse).unwrap(), [2]);
    assert_eq!(tokenizer.encode("</s>", SpecialTokens::AsText).unwrap(), bytes("</s>"));
    // A byte token's name in a text is text.
    assert_eq!(tokenizer.encode("<0x0C>", SpecialTokens::Parse).unwrap(), bytes("<0x0C>"));
}

#[test]
fn end_tokens_come_from_all_places_that_name_them() {
    let ids = |metadata: GgufTokenizer| Tokenizer::from_gguf(metadata).unwrap().end_tokens().to_vec();
    let markers = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<|end|>"];
    let named = |eos, eot, eom| GgufTokenizer { eos, eot, eom, ..tiny(&markers, &[]) };
    assert_eq!(from_gguf().end_tokens(), [2]);
    assert_eq!(ids(named(None, None, None)), [0_u32; 0]);
    assert_eq!(ids(named(Some(1), Some(3), Some(4))), [1, 3, 4]);
    assert_eq!(ids(named(Some(3), Some(3), None)), [3]);
    let chat = GgufTokenizer { chat_template: Some("<|im_end|>".into()), ..named(Some(1), None, None) };
    assert_eq!(ids(chat), [1, 2]);
    // A marker that is ordinary text in this vocabulary ends nothing.
    let ordinary =
        GgufTokenizer { chat_template: Some("<|im_end|>".into()), ..tiny(&["<s>"], &["<|im_end|>"]) };
    assert_eq!(ids(ordinary), [0_u32; 0]);

    let files = |settings: &[u8], generation: &[u8], config: &[u8]| {
        Tokenizer::from_files(tokenizer_json(), Some(settings), Some(generation), Some(config), None).unwrap()
    };
    let none: &[u8] = b"{}";
    let check = |tokenizer: Tokenizer, expected: &[u32]| assert_eq!(tokenizer.end_tokens(), expected);
    check(files(none, none, none), &[]);
    check(files(br#"{"eos_token": "<|im_end|>"}"#, none, none), &[2]);
    check(files(br#"{"eos_token": {"content": "<|im_end|>"}}"#, none, none), &[2]);
    check(files(none, br#"{"eos_token_id": [0, 2]}"#, br#"{"eos_token_id": 7}"#), &[0, 2, 7]);
    check(files(none, none, br#"{"eos_token_id": null}"#), &[]);
}

#[test]
fn bos_is_asked_for_by_the_file_that_says_so() {
    let gguf = |pre: &str, add_bos, bos| {
        let metadata = GgufTokenizer { pre: Some(pre.into()), add_bos, bos, ..tiny(&["<s>"], &[]) };
        Tokenizer::from_gguf(metadata).unwrap().adds_bos()
    };
    assert!(!from_gguf().adds_bos());
    assert!(!gguf("gpt-2", None, Some(0)));
    assert!(gguf("gpt-2", Some(true), Some(0)));
    assert!(!gguf("gpt-2", Some(true), None), "there is none to add");
    assert!(gguf("llama-bpe", None, Some(0)));
    assert!(!gguf("llama-bpe", Some(false), Some(0)));

    let with_processor = |settings: &[u8]| {
        let mut json: Value = serde_json::from_slice(tokenizer_json()).unwrap();
        json["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}
        });
        let json = serde_json::to_vec(&json).unwrap();
        Tokenizer::from_files(&json, Some(settings), None, None, None).unwrap().adds_bos()
    };
    assert!(with_processor(br#"{"bos_token": "<|im_start|>"}"#));
    assert!(!with_processor(br#"{"bos_token": "<|im_start|>", "add_bos_token": false}"#));
    assert!(!with_processor(br#"{"bos_token": "<|endoftext|>"}"#));
    assert!(!with_processor(b"{}"));
}

#[test]
fn metadata_that_contradicts_itself_is_refused_with_the_value() {
    let check = |metadata: GgufTokenizer, expected: &str| {
        let error = Tokenizer::from_gguf(metadata).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let base = || tiny(&["<s>"], &["ab"]);
    check(GgufTokenizer { model: "t5".into(), ..base() }, "\"t5\"");
    check(GgufTokenizer { pre: Some("new-one".into()), ..base() }, "\"new-one\"");
    check(GgufTokenizer { tokens: vec![], token_types: vec![], ..base() }, "no tokens");
    check(GgufTokenizer { token_types: vec![1; 3], ..base() }, "3 token types for 258 tokens");
    check(GgufTokenizer { scores: vec![0.0], ..base() }, "1 scores");
    check(GgufTokenizer { bos: Some(258), ..base() }, "bos token is 258");
    check(GgufTokenizer { eot: Some(u32::MAX), ..base() }, "eot token is 4294967295");
    check(GgufTokenizer { merges: vec!["a b".into(), "ab".into()], ..base() }, "merge 1 is \"ab\"");
    check(GgufTokenizer { merges: vec!["a b c".into()], ..base() }, "merge 0");
    check(GgufTokenizer { merges: vec!["a zz".into()], ..base() }, "zz");
    check(GgufTokenizer { merges: vec!["b a".into()], ..base() }, "ba");
    check(GgufTokenizer { model: "llama".into(), ..base() }, "scores");
    let nan = GgufTokenizer { model: "llama".into(), scores: vec![f32::NAN; 258], ..base() };
    check(nan, "score of token 0");
}

#[test]
fn files_that_this_engine_does_not_follow_are_refused_by_name() {
    let check = |pointer: &str, value: Value, expected: &str| {
        let mut json: Value = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
        });
        *json.pointer_mut(pointer).unwrap() = value;
        let result =
            Tokenizer::from_files(&serde_json::to_vec(&json).unwrap(), None, None, None, None).map(drop);
        match result {
            Ok(()) => assert_eq!(expected, "", "{pointer}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{pointer}: {error}");
            }
        }
    };
    check("/version", json!("1.0"), "");
    check("/model/type", json!("Unigram"), "Unigram");
    check("/model/type", json!(7), "7");
    check("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix");
    check("/model/dropout", json!(0.5), "dropout");
    check("/model/vocab", json!({"a": 0, "b": 1, "ab": 4_294_967_295_u32}), "4294967296 tokens");
    check("/model/vocab", json!({}), "out of vocabulary");
    check("/model/merges", json!(["a"]), "tokenizer.json");
    check("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""}), "Precompiled");
    check("/normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}), "empty");
    check("/pre_tokenizer", json!({"type": "BertPreTokenizer"}), "BertPreTokenizer");
    check("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "WordPiece");
    check("/decoder", Value::Null, "decoder");
    let added = |id: u32, content: &str| {
        json!([{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}])
    };
    check("/added_tokens", added(3, "<x>"), "");
    check("/added_tokens", added(9, "<x>"), "<x>");
    check("/added_tokens", added(3, "a"), "\"a\"");
    for garbage in [&b""[..], b"{", b"[]", b"null", b"\xff\xfe", &[b'['; 100_000][..]] {
        assert!(Tokenizer::from_files(garbage, None, None, None, None).is_err());
        assert!(
            Tokenizer::from_files(tokenizer_json(), Some(garbage), None, None, None).is_err()
                || garbage == b"[]"
                || garbage == b"null"
        );
    }
}

#[test]
fn a_vocabulary_that_would_fill_the_memory_is_refused_before_anything_is_built() {
    let check = |metadata: GgufTokenizer, expected: &str| match Tokenizer::from_gguf(metadata) {
        Ok(_) => panic!("it is taken"),
        Err(refused) => assert!(refused.to_string().contains(expected), "{refused}"),
    };
    let many = |len: usize, text: &str| GgufTokenizer {
        model: "gpt2".into(),
        tokens: vec![text.to_owned(); len],
        token_types: vec![3; len],
        ..GgufTokenizer::default()
    };
    check(many((1 << 20) + 1, "a"), "it has 1048577 tokens; at most 1048576 are");
    check(many(1025, &"b".repeat(1024)), "take 1049600 bytes; at most 1048576 are");
}
