//! Server-sent events out of bytes, however the network cut them.
//!
//! It knows nothing of what the events mean. Invariant: what is kept of an event that has not ended is bounded.

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// The data of an event, its lines joined by line ends.
    Data(String),
    /// A comment, without its colon: a sign of life, or a word for whoever reads along.
    Comment(String),
}

/// An event that is longer than anybody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {limit} bytes")]
pub struct SseTooLong {
    /// What one may have.
    pub limit: usize,
}

/// A stream of events.
#[derive(Clone, Debug)]
pub struct SseReader {
    limit: usize,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// A line feed that follows belongs to the line end before it.
    after_return: bool,
    /// Nothing came yet: a byte order mark may.
    is_new: bool,
}

impl SseReader {
    /// Events of `limit` bytes at most.
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), data: Vec::new(), has_data: false, after_return: false, is_new: true }
    }

    /// Takes what came, and returns what it completes.
    ///
    /// # Errors
    /// An event is longer than the limit; the stream is to be given up.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseItem>, SseTooLong> {
        let mut items = Vec::new();
        for &byte in bytes {
            let follows_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if follows_return => {}
                b'\n' | b'\r' => items.extend(self.end_line()),
                _ if self.line.len() + self.data.len() >= self.limit => {
                    return Err(SseTooLong { limit: self.limit });
                }
                _ => self.line.push(byte),
            }
        }
        Ok(items)
    }

    fn end_line(&mut self) -> Option<SseItem> {
        let line = std::mem::take(&mut self.line);
        let was_new = std::mem::replace(&mut self.is_new, false);
        let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| was_new).unwrap_or(&line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return std::mem::take(&mut self.has_data).then(|| SseItem::Data(text(&data)));
        }
        let colon = line.iter().position(|&byte| byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"" => Some(SseItem::Comment(text(value))),
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                None
            }
            // Names of events, ids and pauses are nothing that our servers send.
            _ => None,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> SseItem {
        SseItem::Data(text.to_owned())
    }

    fn comment(text: &str) -> SseItem {
        SseItem::Comment(text.to_owned())
    }

    /// In one piece, and byte by byte.
    fn check(stream: &str, expected: &[SseItem]) {
        assert_eq!(SseReader::new(64).push(stream.as_bytes()).unwrap(), expected, "{stream:?}");
        let mut reader = SseReader::new(64);
        let pieces = stream.as_bytes().chunks(1).flat_map(|piece| reader.push(piece).unwrap());
        assert_eq!(pieces.collect::<Vec<_>>(), expected, "{stream:?} byte by byte");
    }

    #[test]
    fn events_are_what_the_standard_says_however_they_are_cut() {
        check("", &[]);
        check("data: a\n\n", &[data("a")]);
        check("data:a\r\n\r\ndata: b\r\r", &[data("a"), data("b")]);
        check("data:  a\n\n", &[data(" a")]);
        check("data: a\ndata: b\ndata\n\n", &[data("a\nb\n")]);
        check("data\n\n", &[data("")]);
        check("\n\n\n", &[]);
        check("event: x\nid: 7\nretry: 1\nfoo\ndata: {\"a\":1}\n\n", &[data("{\"a\":1}")]);
        check(": keep-alive\n\ndata: a\n\n", &[comment("keep-alive"), data("a")]);
        check("data: \u{e9}\u{1f600}\n\n", &[data("\u{e9}\u{1f600}")]);
        check("\u{feff}data: a\n\n\u{feff}data: b\n\n", &[data("a")]);
        // What has no blank line behind it never comes.
        check("data: a\n\ndata: b\n", &[data("a")]);
    }

    #[test]
    fn what_is_no_text_is_replaced_and_what_never_ends_is_given_up() {
        let items = SseReader::new(64).push(b"data: \xff\xfe\n\n").unwrap();
        assert_eq!(items, [data("\u{fffd}\u{fffd}")]);
        let check = |stream: &[u8], fits: bool| {
            let mut reader = SseReader::new(16);
            assert_eq!(reader.push(stream).is_ok(), fits, "{}", String::from_utf8_lossy(stream));
        };
        check(b"data: 1234567890\n\n", true);
        check(b"data: 1234567890a\n\n", false);
        check(b"data: 12345\ndata: 12345\n\n", true);
        check(b"data: 12345678\ndata: 123\n\n", false);
        check(&[b'x'; 1000], false);
        check(&b"data: 12345678\n\n".repeat(100), true);
    }
}
