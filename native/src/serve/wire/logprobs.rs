//! Log-probabilities as OpenAI's two forms write them.
//!
//! Invariant: one entry a token, in order; a token that is half a character is told by its bytes.

use serde_json::{Map, Value, json};

use firstlight_engine::request::{SampledToken, TokenLogprob};
use firstlight_engine::text::Tokenizer;

/// JSON has no minus infinity; OpenAI writes this where a token cannot come.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

fn text(tokenizer: &Tokenizer, token: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.bytes_of(token);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// `logprobs.content` of a chat.
pub fn chat(tokenizer: &Tokenizer, tokens: &[SampledToken]) -> Value {
    let entry = |one: &TokenLogprob| {
        let (token, bytes) = text(tokenizer, one.token);
        json!({ "token": token, "logprob": finite(one.logprob), "bytes": bytes })
    };
    let whole = |(chosen, top): &(TokenLogprob, Vec<TokenLogprob>)| {
        let mut value = entry(chosen);
        value["top_logprobs"] = top.iter().map(entry).collect();
        value
    };
    let content: Vec<Value> =
        tokens.iter().filter_map(|sampled| sampled.logprobs.as_ref()).map(whole).collect();
    json!({ "content": content, "refusal": null })
}

/// `logprobs` of a completion; `offset` is how many characters came before, and moves on.
pub fn completion(tokenizer: &Tokenizer, tokens: &[SampledToken], offset: &mut usize) -> Value {
    let (mut texts, mut values, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (chosen, top) in tokens.iter().filter_map(|sampled| sampled.logprobs.as_ref()) {
        let (token, _) = text(tokenizer, chosen.token);
        offsets.push(*offset);
        *offset += token.chars().count();
        let of = |one: &TokenLogprob| (text(tokenizer, one.token).0, json!(finite(one.logprob)));
        // The chosen token is among them, whether or not it is one of the likeliest.
        let likely: Map<String, Value> = top.iter().chain([chosen]).map(of).collect();
        tops.push(likely);
        values.push(finite(chosen.logprob));
        texts.push(token);
    }
    json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}
