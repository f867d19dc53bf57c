//! Preparation: stamps, limits, and refusals with the numbers in them.

use std::cell::Cell;
use std::sync::Arc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::{HostStamps, RejectReason};
use firstlight_engine::text::{PrepareOptions, Preparer, PromptInput, Tokenizer};

use super::fixtures::*;

/// A clock that moves by one whenever it is read.
struct Ticking(Cell<Nanos>);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
    fn origin_unix_ms(&self) -> u64 {
        0
    }
    fn resolution_ns(&self) -> u64 {
        1
    }
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

fn tiny_preparer(vocab_size: u32, max_model_len: u32) -> Preparer {
    let tokenizer = Tokenizer::from_gguf(tiny_chat(TEMPLATE)).unwrap();
    Preparer::new(Some(Arc::new(tokenizer)), vocab_size, max_model_len).unwrap()
}

#[test]
fn a_boundary_that_does_not_apply_gets_the_stamp_before_it() {
    let preparer = tiny_preparer(260, 100);
    let check = |input: PromptInput, expected: [Nanos; 3]| {
        let clock = Ticking(Cell::new(10));
        let mut stamps = HostStamps::default();
        preparer.prepare(input, &PrepareOptions::default(), &clock, &mut stamps).unwrap();
        assert_eq!([stamps.preparing, stamps.templated, stamps.tokenised], expected);
        assert_eq!([stamps.received, stamps.created], [0, 0], "the others are not the preparer's");
    };
    check(PromptInput::Chat(vec![message("user", "x")]), [11, 12, 13]);
    check(PromptInput::Raw("x".into()), [11, 11, 12]);
    check(PromptInput::Ids(vec![5]), [11, 11, 11]);
}

#[test]
fn a_prompt_leaves_room_for_one_token() {
    let preparer = tiny_preparer(260, 8);
    let check = |len: usize, ok: bool| {
        for input in [PromptInput::Ids(vec![7; len]), PromptInput::Raw("x".repeat(len))] {
            let result = prepare(&preparer, input, false).map(|p| p.prompt.len());
            let too_long = RejectReason::PromptTooLong { prompt_len: len as u32, max_model_len: 8 };
            assert_eq!(result, if ok { Ok(len) } else { Err(too_long) });
        }
    };
    check(1, true);
    check(7, true);
    check(8, false);
    check(9, false);
}

#[test]
fn refusals_name_the_value() {
    let preparer = tiny_preparer(100, 100);
    let check = |input: PromptInput, expected: &str| {
        let refused = prepare(&preparer, input, false).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    check(PromptInput::Raw(String::new()), "empty");
    check(PromptInput::Ids(vec![]), "empty");
    check(PromptInput::Ids(vec![1, 100]), "token id 100 is outside the vocabulary of 100");
    // The tokenizer knows more tokens than this model has embeddings.
    check(PromptInput::Raw("é".into()), "outside the vocabulary of 100");
    check(PromptInput::Chat(vec![]), "conversation is empty");
    check(PromptInput::Chat(vec![message("user", "x"); 4097]), "4097 messages");
    check(PromptInput::Chat(vec![message("", "x")]), "role of message 0");
    check(PromptInput::Chat(vec![message("user", "x"), message("<|im_end|>", "x")]), "role of message 1");
    check(PromptInput::Chat(vec![message(&"r".repeat(65), "x")]), "65 bytes");
    check(PromptInput::Raw("x".repeat(1601)), "1601 bytes and a context of 100 tokens holds at most 1600");
    let rendered = PromptInput::Chat(vec![message("user", &"x".repeat(1600))]);
    check(rendered, "1606 bytes and a context of 100 tokens");
    check(PromptInput::Raw("x".repeat((4 << 20) + 1)), "4194305 bytes and at most 4194304");
    let halves = vec![message("user", &"x".repeat(2 << 20)), message("user", &"x".repeat((2 << 20) + 1))];
    check(PromptInput::Chat(halves), "4194305 bytes");
    // Also where the template would leave it out.
    let tokenizer = Tokenizer::from_gguf(tiny_chat("{{ messages[0].content }}")).unwrap();
    let first_only = Preparer::new(Some(Arc::new(tokenizer)), 260, 100).unwrap();
    let check_second = |len: usize, expected: Option<&str>| {
        let two = vec![message("user", "x"), message("user", &"x".repeat(len))];
        let refused = prepare(&first_only, PromptInput::Chat(two), false).err().map(|why| why.to_string());
        match (&refused, expected) {
            (Some(why), Some(part)) => assert!(why.contains(part), "{why}"),
            (got, expected) => assert_eq!(got.as_deref(), expected),
        }
    };
    check_second(1599, None);
    check_second(1600, Some("1601 bytes and a context of 100 tokens"));

    let without = Preparer::new(None, 100, 100).unwrap();
    let refused = prepare(&without, PromptInput::Raw("x".into()), false).unwrap_err().to_string();
    assert!(refused.contains("no tokenizer") && refused.contains("--ids"), "{refused}");
    assert_eq!(prepare(&without, PromptInput::Ids(vec![3]), false).unwrap().prompt, [3]);
}

#[test]
fn the_longest_text_that_is_taken_is_answered() {
    let preparer = preparer(from_gguf());
    let check = |input: PromptInput| assert!(prepare(&preparer, input, false).is_ok());
    check(PromptInput::Raw(" ".repeat(Preparer::MAX_TEXT_BYTES)));
    check(PromptInput::Chat(vec![message("user", &"<|im_end|>".repeat(40_000))]));
}
