//! The text of an answer as a host receives it: token by token, with the rest on the last event.

use std::sync::Arc;

use firstlight_engine::clock::ManualClock;
use firstlight_engine::engine::{Engine, RequestEvent};
use firstlight_engine::request::{FinishReason, SampledToken, SamplingParams};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, SchedulerConfig};
use firstlight_engine::text::{SpecialTokens, Tokenizer};
use firstlight_tests::scripted::step_now;

use super::bench::{ROOMY, config, request};

const TOKENIZER: &[u8] = include_bytes!("../../golden/tokenizer.json");

/// Says what it was told to say, to whoever asks.
struct Recital(std::vec::IntoIter<u32>);

impl ModelRunner for Recital {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let tokens = self.0.by_ref().take(batch.sample_rows.len());
        Ok(RunnerOutput {
            tokens: tokens.map(|token| SampledToken { token, logprobs: None }).collect(),
            gpu_ns: None,
            stages: None,
        })
    }
}

/// What came out: the texts of the tokens, the text of the end, and why it ended.
#[derive(Debug, PartialEq)]
struct Heard {
    num_tokens: usize,
    streamed: String,
    rest: String,
    reason: FinishReason,
}

fn hear(tokenizer: &Arc<Tokenizer>, ids: Vec<u32>, stop: &[&str], ignore_eos: bool) -> Heard {
    let clock = ManualClock::new();
    let scheduler = SchedulerConfig { vocab_size: tokenizer.vocab_size(), ..ROOMY };
    let params = SamplingParams {
        max_tokens: ids.len() as u32,
        stop: stop.iter().map(ToString::to_string).collect(),
        ignore_eos,
        ..SamplingParams::default()
    };
    let config = config(scheduler, tokenizer.end_tokens());
    let mut engine = Engine::new(Recital(ids.into_iter()), &clock, config, Some(Arc::clone(tokenizer)));
    engine.submit(request(0, &[5], params, 0));
    let (mut num_tokens, mut streamed, mut end) = (0, String::new(), None);
    while engine.has_work() {
        for event in step_now(&mut engine).expect("a recital does not fail").events {
            assert!(end.is_none(), "something follows the end");
            match event {
                RequestEvent::Token { text, .. } => {
                    num_tokens += 1;
                    streamed.push_str(&text);
                }
                RequestEvent::Finished { reason, text, .. } => end = Some((reason, text)),
            }
        }
    }
    let (reason, rest) = end.expect("every request ends");
    Heard { num_tokens, streamed, rest, reason }
}

#[test]
fn text_comes_with_the_tokens_that_make_it_certain_and_stops_before_a_stop_string() {
    let config = br#"{"eos_token": "<|im_end|>"}"#;
    let tokenizer = Tokenizer::from_files(TOKENIZER, Some(config), None, None, None);
    let tokenizer = Arc::new(tokenizer.expect("the golden tokenizer"));
    let encode = |text: &str| tokenizer.encode(text, SpecialTokens::Parse).expect("it has tokens");
    let check = |said: &str, stop: &[&str], ignore_eos: bool, expected: (&str, &str, FinishReason)| {
        let heard = hear(&tokenizer, encode(said), stop, ignore_eos);
        assert_eq!((heard.streamed.as_str(), heard.rest.as_str(), heard.reason), expected, "{said}");
    };
    check("The sky is blue.", &[], false, ("The sky is blue.", "", FinishReason::Length));
    // Text that may begin a stop string is held back, and is given at the end if it was none.
    check("One, two,", &[", three"], false, ("One, two", ",", FinishReason::Length));
    check("One, two, three", &[", three"], false, ("One, two", "", FinishReason::StopString));
    check("One, two, three", &["two", "One,"], false, ("", "", FinishReason::StopString));
    // The end token is no text; what was held back before it is.
    check("One,<|im_end|>two", &[", three"], false, ("One", ",", FinishReason::Stop));
    check("One,<|im_end|>two", &[], true, ("One,two", "", FinishReason::Length));
    // Half a character is never given out.
    let mut half = encode("Hi \u{1f980}");
    half.pop();
    let heard = hear(&tokenizer, half, &[], false);
    assert_eq!((heard.streamed.trim_end(), heard.rest.as_str()), ("Hi", ""));
    // The tokens that end an answer are counted and told.
    let ids = encode("One, two, three, four");
    let stopped = hear(&tokenizer, ids.clone(), &["three"], false);
    assert!(stopped.num_tokens < ids.len());
    let told = tokenizer.end_tokens().len();
    assert_eq!((told, hear(&tokenizer, encode("One<|im_end|>"), &[], false).num_tokens), (1, 2));
}
