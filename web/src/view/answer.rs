//! One prompt on its way to a server and its answer on the way back: OpenAI's words, and Firstlight's under its own name.
//!
//! Pure: bodies and chunks in, events out. Invariant: of an answer's end there is exactly one account, [`Answer::end`].

use firstlight_engine::request::FinishReason;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::protocol::{Ask, AskId, Event, Prompt, Sampling};

/// As many characters of a server's own words are shown at most.
const SHOWN: usize = 500;

/// Path and body of the call that asks for it, streamed.
pub fn call(ask: &Ask, model: &str) -> (&'static str, Value) {
    let (path, name, prompt) = match &ask.prompt {
        Prompt::Chat(messages) => ("/v1/chat/completions", "messages", json!(messages)),
        Prompt::Raw(text) => ("/v1/completions", "prompt", json!(text)),
    };
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    body.insert(name.to_owned(), prompt);
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    // The last chunk then says why it ended, in the engine's own words, and which tokens there were.
    body.insert("firstlight".to_owned(), json!({ "trace": true }));
    sampling(&ask.sampling, &mut body);
    (path, body.into())
}

fn sampling(sampling: &Sampling, body: &mut Map<String, Value>) {
    let Sampling {
        max_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        seed,
        stop,
        ignore_eos,
    } = sampling;
    let numbers = [
        ("temperature", temperature),
        ("top_p", top_p),
        ("min_p", min_p),
        ("repetition_penalty", repetition_penalty),
        ("presence_penalty", presence_penalty),
        ("frequency_penalty", frequency_penalty),
    ];
    body.insert("max_tokens".to_owned(), (*max_tokens).into());
    body.insert("top_k".to_owned(), (*top_k).into());
    for (name, number) in numbers {
        // As it was typed, 0.7, and not as its 32 bits read in 64.
        let number: f64 = number.to_string().parse().unwrap_or_else(|_| f64::from(*number));
        body.insert(name.to_owned(), json!(number));
    }
    if let Some(seed) = seed {
        // The server reads 64 bits with a sign, and takes the same bits back out.
        body.insert("seed".to_owned(), seed.cast_signed().into());
    }
    if !stop.is_empty() {
        body.insert("stop".to_owned(), json!(stop));
    }
    body.insert("ignore_eos".to_owned(), (*ignore_eos).into());
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    id: String,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    firstlight: Option<Trace>,
    #[serde(default)]
    error: Option<ErrorWords>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u32,
}

#[derive(Deserialize)]
struct Trace {
    #[serde(default)]
    timeline: Option<TraceTimeline>,
    #[serde(default)]
    token_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct TraceTimeline {
    #[serde(default)]
    finish_reason: Option<FinishReason>,
}

#[derive(Deserialize)]
struct ErrorWords {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: Option<String>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorWords,
}

/// Why an answer ended, and in a sentence where that was no ordinary end.
pub type End = (FinishReason, Option<String>);

/// An answer as it comes.
#[derive(Clone, Debug)]
pub struct Answer {
    ask: AskId,
    accepted: bool,
    /// Pieces of text count as one token each until the server says how many there were.
    tokens: u32,
    reason: Option<FinishReason>,
    failure: Option<End>,
    done: bool,
}

impl Answer {
    /// Of this prompt; nothing came yet.
    pub fn new(ask: AskId) -> Self {
        Self { ask, accepted: false, tokens: 0, reason: None, failure: None, done: false }
    }

    /// Nothing that comes now is of any interest.
    pub fn has_ended(&self) -> bool {
        self.done || self.failure.is_some()
    }

    /// Takes the data of an event.
    ///
    /// # Errors
    /// What is wrong with it: it is no chunk of an answer.
    pub fn take(&mut self, data: &str) -> Result<Vec<Event>, String> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(Vec::new());
        }
        // A list would be read as the fields in their order.
        if !data.trim_start().starts_with('{') {
            return Err("it is no JSON object".to_owned());
        }
        let chunk: Chunk = serde_json::from_slice(data.as_bytes()).map_err(|error| error.to_string())?;
        if let Some(error) = chunk.error {
            self.failure = Some(broken_off(error));
            return Ok(Vec::new());
        }
        let mut events = Vec::new();
        if !self.accepted && !chunk.id.is_empty() {
            self.accepted = true;
            let id = format!("{}#0", shortened(&chunk.id));
            events.push(Event::Accepted { ask: self.ask, id, rendered: None, prompt_tokens: None });
        }
        let mut text = String::new();
        for choice in chunk.choices {
            text.extend(choice.delta.and_then(|delta| delta.content).or(choice.text));
            self.reason = choice.finish_reason.as_deref().map(reason).or(self.reason);
        }
        let before = self.tokens;
        if !text.is_empty() {
            self.tokens = self.tokens.saturating_add(1);
        }
        let trace = chunk.firstlight;
        let said = trace.as_ref().and_then(|trace| trace.timeline.as_ref()?.finish_reason);
        self.reason = said.or(self.reason);
        self.tokens = chunk.usage.map_or(self.tokens, |usage| usage.completion_tokens);
        let token_ids = trace.map(|trace| trace.token_ids).unwrap_or_default();
        if !text.is_empty() || !token_ids.is_empty() || self.tokens != before {
            events.push(Event::Text { ask: self.ask, text, tokens: self.tokens, token_ids });
        }
        Ok(events)
    }

    /// How it ended, once nothing more comes; `None` where it broke off.
    pub fn end(self) -> Option<End> {
        let whole = || self.reason.filter(|_| self.done).map(|reason| (reason, None));
        self.failure.clone().or_else(whole)
    }
}

fn reason(word: &str) -> FinishReason {
    match word {
        "length" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    }
}

fn broken_off(error: ErrorWords) -> End {
    let reason = match error.code.as_deref() {
        Some("cancelled") => FinishReason::Cancelled,
        Some("deadline_exceeded") => FinishReason::Deadline,
        _ => FinishReason::Failed,
    };
    (reason, Some(sentence(&error.message)))
}

/// An answer that is none, by its status: the server's own words where it has some.
pub fn refusal(status: u16, body: &[u8], retry_after: Option<&str>) -> End {
    let error = serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error);
    let code = error.as_ref().and_then(|error| error.code.as_deref());
    let reason = match (status, code) {
        (503, Some("cancelled")) => FinishReason::Cancelled,
        (_, Some("deadline_exceeded")) => FinishReason::Deadline,
        (_, Some("content_filter")) => FinishReason::ContentFilter,
        (503, _) => FinishReason::Rejected,
        (500.., _) => FinishReason::Failed,
        _ => FinishReason::Rejected,
    };
    let words = error.map(|error| error.message).filter(|words| !words.is_empty());
    let words = words.unwrap_or_else(|| format!("the server answered with status {status} and no reason"));
    let again =
        retry_after.and_then(|after| after.parse::<u32>().ok()).filter(|_| !words.contains("again in"));
    let again = again.map(|seconds| format!("; it may be asked again in {seconds} s")).unwrap_or_default();
    (reason, Some(sentence(&format!("{}{again}", shortened(&words)))))
}

fn shortened(words: &str) -> String {
    words.chars().take(SHOWN).collect()
}

/// Words with a capital at their beginning and a full stop at their end.
pub fn sentence(words: &str) -> String {
    let words = shortened(words.trim());
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if words.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;

    fn ask(prompt: Prompt, sampling: Sampling) -> Ask {
        Ask { id: AskId(3), received: 0, prompt, sampling }
    }

    #[test]
    fn a_prompt_becomes_a_call_with_all_that_was_set() {
        let message = Message { role: "user".to_owned(), content: "Hi".to_owned() };
        let sampling = Sampling {
            temperature: 0.7,
            top_p: 0.95,
            seed: Some(u64::MAX),
            stop: vec!["END".to_owned()],
            ..Sampling::default()
        };
        let (path, body) = call(&ask(Prompt::Chat(vec![message]), sampling), "m");
        let expected = json!({
            "model": "m", "messages": [{ "role": "user", "content": "Hi" }], "stream": true,
            "stream_options": { "include_usage": true }, "firstlight": { "trace": true }, "max_tokens": 256,
            "top_k": 0, "temperature": 0.7, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": -1, "stop": ["END"], "ignore_eos": false,
        });
        assert_eq!((path, body), ("/v1/chat/completions", expected));
        let (path, body) = call(&ask(Prompt::Raw("Once".to_owned()), Sampling::default()), "m");
        assert_eq!((path, &body["prompt"], body.get("seed")), ("/v1/completions", &json!("Once"), None));
        assert_eq!((body.get("messages"), body.get("stop")), (None, None));
    }

    fn text(text: &str, tokens: u32, token_ids: &[u32]) -> Event {
        Event::Text { ask: AskId(3), text: text.to_owned(), tokens, token_ids: token_ids.to_vec() }
    }

    fn accepted(id: &str) -> Event {
        Event::Accepted { ask: AskId(3), id: id.to_owned(), rendered: None, prompt_tokens: None }
    }

    fn check(stream: &[&str], expected: &[Event], end: Option<(FinishReason, Option<&str>)>) {
        let mut answer = Answer::new(AskId(3));
        let events: Vec<_> = stream.iter().flat_map(|data| answer.take(data).unwrap()).collect();
        assert_eq!(events, expected, "{stream:?}");
        let end = end.map(|(reason, detail)| (reason, detail.map(str::to_owned)));
        assert_eq!(answer.end(), end, "{stream:?}");
    }

    const OPENING: &str = r#"{"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#;
    const HELLO: &str =
        r#"{"id":"c-1","choices":[{"delta":{"content":"Hello"},"finish_reason":null}],"usage":null}"#;
    const END: &str = r#"{"id":"c-1","choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}"#;
    const USAGE: &str = r#"{"id":"c-1","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3},
        "firstlight":{"timeline":{"finish_reason":"stop_string","more":[]},"token_ids":[5,6,7]}}"#;

    #[test]
    fn chunks_become_events_and_one_end() {
        let all = [accepted("c-1#0"), text("Hello", 1, &[]), text("", 3, &[5, 6, 7])];
        check(&[OPENING, HELLO, END, USAGE, "[DONE]"], &all, Some((FinishReason::StopString, None)));
        check(&[HELLO, END, "[DONE]"], &all[..2], Some((FinishReason::Stop, None)));
        let raw = r#"{"id":"c","choices":[{"text":"x","finish_reason":"length"}]}"#;
        check(&[raw, "[DONE]"], &[accepted("c#0"), text("x", 1, &[])], Some((FinishReason::Length, None)));
        // It broke off: nobody may take it for whole.
        check(&[], &[], None);
        check(&[HELLO], &all[..2], None);
        check(&[HELLO, END], &all[..2], None);
        check(&[HELLO, "[DONE]"], &all[..2], None);
    }

    #[test]
    fn an_error_in_a_stream_is_its_end() {
        let check_error = |code: &str, reason: FinishReason| {
            let error = format!(r#"{{"error":{{"message":"the engine failed","code":{code}}}}}"#);
            let expected = Some((reason, Some("The engine failed.")));
            check(&[&error, "[DONE]"], &[], expected);
        };
        check_error("null", FinishReason::Failed);
        check_error("\"cancelled\"", FinishReason::Cancelled);
        check_error("\"deadline_exceeded\"", FinishReason::Deadline);
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for data in ["", "x", "[]", "[1]", "7", r#"{"choices":7}"#, r#"{"choices":[{"delta":"x"}]}"#] {
            assert!(Answer::new(AskId(3)).take(data).is_err(), "{data}");
        }
        let deep = "[".repeat(100_000);
        assert!(Answer::new(AskId(3)).take(&deep).is_err());
    }

    #[test]
    fn a_refusal_says_why_and_when_to_come_back() {
        let check = |status: u16, body: &str, after: Option<&str>, reason: FinishReason, words: &str| {
            assert_eq!(refusal(status, body.as_bytes(), after), (reason, Some(words.to_owned())), "{body}");
        };
        let busy = r#"{"error":{"message":"2 requests are waiting","code":"server_busy"}}"#;
        let rejected = FinishReason::Rejected;
        check(429, busy, Some("1"), rejected, "2 requests are waiting; it may be asked again in 1 s.");
        check(429, busy, Some("soon"), rejected, "2 requests are waiting.");
        let quota = r#"{"error":{"message":"the quota is used up; ask again in 7 s"}}"#;
        check(429, quota, Some("7"), rejected, "The quota is used up; ask again in 7 s.");
        let code = |code: &str| format!(r#"{{"error":{{"message":"no","code":"{code}"}}}}"#);
        check(503, &code("cancelled"), None, FinishReason::Cancelled, "No.");
        check(503, &code("shutting_down"), None, rejected, "No.");
        check(408, &code("deadline_exceeded"), None, FinishReason::Deadline, "No.");
        check(400, &code("content_filter"), None, FinishReason::ContentFilter, "No.");
        check(500, &code(""), None, FinishReason::Failed, "No.");
        let nothing = "The server answered with status 502 and no reason.";
        check(502, "<html>", None, FinishReason::Failed, nothing);
        check(502, r#"{"error":{}}"#, None, FinishReason::Failed, nothing);
        let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "x".repeat(10_000));
        assert_eq!(refusal(400, long.as_bytes(), None).1.map(|words| words.len()), Some(SHOWN + 1));
    }
}
