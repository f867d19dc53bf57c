//! Server-sent events out of bytes, and what a streamed chat says in them.
//!
//! Pure: it is told when bytes arrived. Invariant: what it keeps is bounded, whatever comes.

use serde_json::Value;

use firstlight_engine::clock::Nanos;

/// The most bytes of one line: a timeline of 65,536 tokens fits.
const MAX_LINE: usize = 8 << 20;

/// What a stream has said so far.
#[derive(Debug, Default)]
pub struct Stream {
    line: Vec<u8>,
    /// When each piece of text arrived.
    pub arrivals: Vec<Nanos>,
    /// Tokens of the answer, where the server counts them.
    pub tokens: Option<u64>,
    /// The server's timeline.
    pub timeline: Option<Value>,
    /// A choice's end, or `[DONE]`, was there.
    pub ended: bool,
    /// `[DONE]` was there: nothing follows.
    pub done: bool,
    /// Events of any kind.
    pub events: usize,
}

/// Why a stream is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStream {
    /// A line without an end.
    #[error("sent a line of more than {MAX_LINE} bytes")]
    LongLine,
    /// It goes on.
    #[error("sent more than {0} pieces of text where fewer tokens were asked for")]
    Endless(usize),
    /// An event that is no JSON.
    #[error("sent an event that is no JSON: {0:?}")]
    NoJson(String),
    /// The server's own error.
    #[error("ended the answer with an error: {0}")]
    Error(String),
}

impl Stream {
    /// Takes bytes that arrived at `at`; at most `most` pieces of text may come.
    ///
    /// # Errors
    /// The stream is none, or ends in an error.
    pub fn take(&mut self, bytes: &[u8], at: Nanos, most: usize) -> Result<(), BadStream> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.grow(&rest[..end])?;
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.read_line(&line, at, most)?;
        }
        self.grow(rest)
    }

    fn grow(&mut self, part: &[u8]) -> Result<(), BadStream> {
        if self.line.len() + part.len() > MAX_LINE {
            return Err(BadStream::LongLine);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn read_line(&mut self, line: &[u8], at: Nanos, most: usize) -> Result<(), BadStream> {
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        self.events += 1;
        if data == b"[DONE]" {
            (self.ended, self.done) = (true, true);
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|_| BadStream::NoJson(begin_of(data)))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(BadStream::Error(message_of(error)));
        }
        if has_text(&event) {
            if self.arrivals.len() == most {
                return Err(BadStream::Endless(most));
            }
            self.arrivals.push(at);
        }
        let choice = &event["choices"][0];
        self.ended |= choice["finish_reason"].is_string();
        self.tokens = event["usage"]["completion_tokens"].as_u64().or(self.tokens);
        if let Some(timeline) = event["firstlight"].get("timeline") {
            self.timeline = Some(timeline.clone());
        }
        Ok(())
    }
}

/// A chunk that a reader sees something of: the opening one, which says who speaks, is none.
fn has_text(event: &Value) -> bool {
    let choice = &event["choices"][0];
    let delta = &choice["delta"];
    // Some servers stream what a model thinks before it speaks under one of these names.
    let texts = [&delta["content"], &choice["text"], &delta["reasoning_content"], &delta["reasoning"]];
    texts.into_iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
}

/// The sentence in an error, in whatever form it comes.
pub fn message_of(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).or(error.as_str());
    begin_of_text(message.unwrap_or(&error.to_string()))
}

/// The beginning of what came, for a sentence.
pub fn begin_of(bytes: &[u8]) -> String {
    // Four bytes a character at most, of which 200 are kept.
    begin_of_text(&String::from_utf8_lossy(&bytes[..bytes.len().min(800)]))
}

/// The same of a text. What would move a terminal's cursor or begin a new line is a space: the text is a stranger's.
fn begin_of_text(text: &str) -> String {
    const MOST: usize = 200;
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let short: String = text.chars().take(MOST).map(shown).collect();
    if text.chars().nth(MOST).is_some() { format!("{short}...") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_says_moves_no_cursor_and_is_one_line() {
        let check = |text: &str, expected: &str| assert_eq!(begin_of_text(text), expected, "{text:?}");
        check("plain é", "plain é");
        check("a\x1b[2Jb\r\nc", "a [2Jb  c");
        check(&"é".repeat(200), &"é".repeat(200));
        check(&"é".repeat(201), &format!("{}...", "é".repeat(200)));
    }

    /// Feeds `text` in pieces of `size` bytes, each a nanosecond after the one before.
    fn read(text: &str, size: usize) -> Result<Stream, BadStream> {
        let mut stream = Stream::default();
        for (at, bytes) in text.as_bytes().chunks(size).enumerate() {
            stream.take(bytes, at as Nanos, 3)?;
        }
        Ok(stream)
    }

    fn text(content: &str) -> String {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":{content:?}}},\"finish_reason\":null}}]}}\n\n"
        )
    }

    #[test]
    fn text_counts_when_its_line_is_whole_and_an_opening_chunk_is_no_text() {
        let all = format!(": hello\r\n\n{}{}{}data: [DONE]\n\n", text(""), text("é"), text("b"));
        for size in [1, 7, all.len()] {
            let stream = read(&all, size).unwrap();
            assert_eq!((stream.arrivals.len(), stream.ended, stream.events), (2, true, 4), "{size}");
        }
        assert_eq!(read(&all, all.len()).unwrap().arrivals, [0, 0], "what comes together came together");
        let usage = "data:{\"usage\":{\"completion_tokens\":7},\"choices\":[]}\n";
        let stream = read(usage, 5).unwrap();
        assert_eq!((stream.tokens, stream.ended), (Some(7), false));
    }

    #[test]
    fn what_is_no_stream_is_told_and_bounded() {
        let check = |all: &str, expected: BadStream| assert_eq!(read(all, 3).err(), Some(expected), "{all}");
        check("data: {oops}\n", BadStream::NoJson("{oops}".into()));
        check("data: {\"error\":{\"message\":\"full\"}}\n", BadStream::Error("full".into()));
        check("data: {\"error\":\"full\"}\n", BadStream::Error("full".into()));
        check(&text("a").repeat(4), BadStream::Endless(3));
        let mut stream = Stream::default();
        let piece = vec![b'x'; 1 << 20];
        let outcome = (0..9).try_for_each(|_| stream.take(&piece, 0, 3));
        assert_eq!(outcome, Err(BadStream::LongLine));
        let html = read("<html>\n<body>data: x</body>", 4).unwrap();
        assert_eq!((html.events, html.ended), (0, false));
        assert_eq!(begin_of("é".repeat(1000).as_bytes()).chars().count(), 203);
    }
}
