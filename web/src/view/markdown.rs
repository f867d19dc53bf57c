//! The little Markdown that models write, as plain data: paragraphs, headings, lists, fenced code; bold, italics, code.
//!
//! It never makes HTML: a page turns the data into nodes, so nothing in an answer can be more than text. Invariant: linear in
//! the text, and every character that is no markup is kept.

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// Running text; line breaks stand in it.
    Paragraph(Vec<Span>),
    /// With its level, 1 to 6.
    Heading(u8, Vec<Span>),
    /// Between fences; the last one may still be open.
    Code {
        /// What stands behind the fence.
        language: String,
        /// As it is.
        text: String,
    },
    /// Items with their depth, 0 to 3.
    List {
        /// The first number of an ordered list.
        start: Option<u32>,
        /// In their order.
        items: Vec<(u8, Vec<Span>)>,
    },
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// As it is.
    Text(String),
    /// Between two pairs of asterisks.
    Bold(String),
    /// Between two asterisks.
    Italic(String),
    /// Between backticks.
    Code(String),
}

/// The blocks of `text`.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut out = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        let special = bare.starts_with("```") || heading(bare).is_some() || item(line).is_some();
        if (special || bare.is_empty()) && !paragraph.is_empty() {
            out.push(Block::Paragraph(spans(&paragraph.join("\n"))));
            paragraph.clear();
        }
        if let Some(info) = bare.strip_prefix("```") {
            let code: Vec<&str> = lines.by_ref().take_while(|l| l.trim_start().trim_end() != "```").collect();
            out.push(Block::Code { language: info.trim().to_owned(), text: code.join("\n") });
        } else if let Some((level, title)) = heading(bare) {
            out.push(Block::Heading(level, spans(title)));
        } else if let Some((number, depth, said)) = item(line) {
            let entry = (depth, spans(said));
            match out.last_mut() {
                Some(Block::List { start, items }) if depth > 0 || start.is_some() == number.is_some() => {
                    items.push(entry);
                }
                _ => out.push(Block::List { start: number, items: vec![entry] }),
            }
        } else if !bare.is_empty() {
            paragraph.push(line);
        }
    }
    if !paragraph.is_empty() {
        out.push(Block::Paragraph(spans(&paragraph.join("\n"))));
    }
    out
}

/// Level and title.
fn heading(bare: &str) -> Option<(u8, &str)> {
    let title = bare.trim_start_matches('#');
    let level = bare.len() - title.len();
    ((1..=6).contains(&level) && title.starts_with(' ')).then(|| (level as u8, title.trim()))
}

/// Number (of an ordered list), depth and text.
fn item(line: &str) -> Option<(Option<u32>, u8, &str)> {
    let bare = line.trim_start();
    let depth = ((line.len() - bare.len()) / 2).min(3) as u8;
    if let Some(said) = ["- ", "* ", "+ "].iter().find_map(|bullet| bare.strip_prefix(bullet)) {
        return Some((None, depth, said.trim()));
    }
    let rest = bare.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = bare[..bare.len() - rest.len()].parse().ok()?;
    let said = rest.strip_prefix(". ").or_else(|| rest.strip_prefix(") "))?;
    Some((Some(number), depth, said.trim()))
}

/// The spans of a line, or of lines with their breaks.
fn spans(text: &str) -> Vec<Span> {
    let mut out = Vec::new();
    let mut plain = 0;
    let mut at = 0;
    // A mark that is not closed behind one place is not closed behind any later one: each search fails once at most.
    let mut hopeless = [false; 3];
    while let Some(found) = text[at..].find(['`', '*']) {
        at += found;
        let rest = &text[at..];
        let (kind, mark) = match rest {
            _ if rest.starts_with('`') => (0, "`"),
            _ if rest.starts_with("**") => (1, "**"),
            _ => (2, "*"),
        };
        let inside = &rest[mark.len()..];
        let in_word = kind == 2 && text[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let opens = kind == 0 || !(inside.starts_with(char::is_whitespace) || in_word);
        let end = if hopeless[kind] || !opens { None } else { inside.find(mark) };
        hopeless[kind] |= opens && end.is_none();
        let said = end.map(|end| &inside[..end]).filter(|said| !said.is_empty());
        match said.filter(|said| kind == 0 || !said.ends_with(char::is_whitespace)) {
            Some(said) => {
                if plain < at {
                    out.push(Span::Text(text[plain..at].to_owned()));
                }
                out.push([Span::Code, Span::Bold, Span::Italic][kind](said.to_owned()));
                at += mark.len() * 2 + said.len();
                plain = at;
            }
            None => at += mark.len(),
        }
    }
    if plain < text.len() {
        out.push(Span::Text(text[plain..].to_owned()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(said: &str) -> Span {
        Span::Text(said.into())
    }

    #[test]
    fn lines_become_blocks() {
        let check = |input: &str, expected: Vec<Block>| assert_eq!(blocks(input), expected, "{input:?}");
        check("", vec![]);
        check("one\ntwo", vec![Block::Paragraph(vec![text("one\ntwo")])]);
        check("one\n\n\ntwo", vec![Block::Paragraph(vec![text("one")]), Block::Paragraph(vec![text("two")])]);
        check("## Two\nx", vec![Block::Heading(2, vec![text("Two")]), Block::Paragraph(vec![text("x")])]);
        check("#hash\n####### 7", vec![Block::Paragraph(vec![text("#hash\n####### 7")])]);
        let code = |language: &str, text: &str| Block::Code { language: language.into(), text: text.into() };
        check(
            "```rust\nfn f() {}\n\n  x\n```\nafter",
            vec![code("rust", "fn f() {}\n\n  x"), Block::Paragraph(vec![text("after")])],
        );
        check("```\n<b>still open", vec![code("", "<b>still open")]);
        let list = |start, items: &[(u8, &str)]| Block::List {
            start,
            items: items.iter().map(|(depth, said)| (*depth, vec![text(said)])).collect(),
        };
        check(
            "a:\n- x\n  - y\n* z",
            vec![Block::Paragraph(vec![text("a:")]), list(None, &[(0, "x"), (1, "y"), (0, "z")])],
        );
        check("1. x\n\n2) y", vec![list(Some(1), &[(0, "x"), (0, "y")])]);
        check("1. x\n- y", vec![list(Some(1), &[(0, "x")]), list(None, &[(0, "y")])]);
        check("99999999999. x", vec![Block::Paragraph(vec![text("99999999999. x")])]);
    }

    #[test]
    fn marks_become_spans_and_all_else_stays() {
        let check = |input: &str, expected: &[Span]| assert_eq!(spans(input), expected, "{input:?}");
        let (bold, italic, code) = (
            |said: &str| Span::Bold(said.into()),
            |said: &str| Span::Italic(said.into()),
            |said: &str| Span::Code(said.into()),
        );
        check("a **b** c", &[text("a "), bold("b"), text(" c")]);
        check("*i* and `c*d*`", &[italic("i"), text(" and "), code("c*d*")]);
        check("2 * 3 * 4", &[text("2 * 3 * 4")]);
        check("a*b*c", &[text("a*b*c")]);
        check("**open", &[text("**open")]);
        check("``", &[text("``")]);
        check("é**ü**ß", &[text("é"), bold("ü"), text("ß")]);
        check("<script>`x`", &[text("<script>"), code("x")]);
    }

    #[test]
    fn marks_that_never_close_cost_one_search_each() {
        // 200,000 marks: quadratic work would be 2 * 10^10 comparisons.
        let many = "*a `b **c ".repeat(66_000);
        assert!(!spans(&many).is_empty());
        let lengths: usize = blocks(&"* ".repeat(100_000)).len();
        assert_eq!(lengths, 1);
    }
}
