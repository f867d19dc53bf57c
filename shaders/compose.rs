//! Puts a kernel's text together: a header of constants, the kernel, its snippets. Plain concatenation (WGSL allows use
//! before definition), and one rewriting step: a loop marked `// unroll` is written out.
//!
//! Never parses WGSL beyond matching braces; whether the result is valid is naga's word. Invariant: without marked loops
//! the output is the input's text, unchanged.

/// A constant of the header: `const NAME: u32 = value;`. Tile sizes are constants, since a function-local array
/// cannot have an override as its size.
pub type Const = (&'static str, u32);

/// A marked loop that cannot be written out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot unroll `{line}`: {reason}")]
pub struct ComposeError {
    /// The loop's first line.
    pub line: String,
    /// Why not.
    pub reason: &'static str,
}

/// The most copies one marked loop may become; beyond it a driver's compiler suffers.
const MAX_COPIES: u32 = 64;

/// Concatenates header, kernel and snippets, and writes out every marked loop.
///
/// A marked loop is `for (var i = 0u; i < BOUND; i++) { // unroll` on one line, where BOUND is a literal or a product or
/// quotient of literals and constants of this text (`const NAME: u32 = 4u;`).
pub fn compose(header: &[Const], kernel: &str, snippets: &[&str]) -> Result<String, ComposeError> {
    let mut text = String::new();
    for (name, value) in header {
        text.push_str(&format!("const {name}: u32 = {value}u;\n"));
    }
    for part in std::iter::once(&kernel).chain(snippets) {
        text.push_str(part);
        text.push('\n');
    }
    let constants = constants(&text);
    unroll(&text, &constants)
}

/// The `const NAME: u32 = 4u;` lines of a text.
fn constants(text: &str) -> Vec<(&str, u32)> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.strip_prefix("const ")?.split_once(": u32 = ")?;
            let value = value.split(';').next()?.trim_end_matches('u').parse().ok()?;
            Some((name, value))
        })
        .collect()
}

/// One marked loop.
struct Loop<'a> {
    variable: &'a str,
    copies: u32,
}

fn parse_loop<'a>(line: &'a str, constants: &[(&str, u32)]) -> Result<Loop<'a>, ComposeError> {
    let fail = |reason| ComposeError { line: line.trim().to_string(), reason };
    let form = || fail("the form is `for (var i = 0u; i < BOUND; i++) { // unroll`");
    let rest = line.trim_start().strip_prefix("for (var ").ok_or_else(form)?;
    let (variable, rest) = rest.split_once(" = 0u; ").ok_or_else(form)?;
    let rest = rest.strip_prefix(variable).and_then(|r| r.strip_prefix(" < ")).ok_or_else(form)?;
    let (bound, rest) = rest.split_once("; ").ok_or_else(form)?;
    if rest.strip_prefix(variable) != Some("++) { // unroll") {
        return Err(form());
    }
    let mut value = None;
    let mut operator = "*";
    for word in bound.split(' ') {
        if word == "*" || word == "/" {
            operator = word;
            continue;
        }
        let named = || constants.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
        let number = word.trim_end_matches('u').parse::<u32>().ok().or_else(named);
        let number = number.ok_or_else(|| fail("the bound names a constant that this text lacks"))?;
        value = match (value, operator) {
            (None, _) => Some(number),
            (Some(v), "*") => u32::checked_mul(v, number),
            (Some(v), _) => u32::checked_div(v, number),
        };
    }
    match value {
        Some(copies) if copies <= MAX_COPIES => Ok(Loop { variable, copies }),
        Some(_) => Err(fail("more than 64 copies")),
        None => Err(form()),
    }
}

fn unroll(text: &str, constants: &[(&str, u32)]) -> Result<String, ComposeError> {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.ends_with("// unroll") {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let marked = parse_loop(line, constants)?;
        let mut body = Vec::new();
        let mut depth = 1i32;
        for inner in lines.by_ref() {
            let code = inner.split("//").next().unwrap_or("");
            depth += code.matches('{').count() as i32 - code.matches('}').count() as i32;
            if depth == 0 {
                break;
            }
            body.push(inner);
        }
        if depth != 0 {
            return Err(ComposeError { line: line.trim().to_string(), reason: "its end is missing" });
        }
        // Inner loops first: their bodies are then copied once per copy of this one, already written out.
        let body = unroll(&body.join("\n"), constants)?;
        for i in 0..marked.copies {
            out.push_str("{\n");
            replace_word(&body, marked.variable, &format!("{i}u"), &mut out);
            out.push_str("}\n");
        }
    }
    Ok(out)
}

/// Copies `text` to `out` with every whole word `word` replaced.
fn replace_word(text: &str, word: &str, by: &str, out: &mut String) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut done = 0;
    for (at, _) in text.match_indices(word) {
        if at < done {
            continue;
        }
        // `.m` is a member, not the variable m.
        let before = text[..at].chars().next_back().is_none_or(|c| !is_word(c) && c != '.');
        let after = text[at + word.len()..].chars().next().is_none_or(|c| !is_word(c));
        if before && after {
            out.push_str(&text[done..at]);
            out.push_str(by);
            done = at + word.len();
        }
    }
    out.push_str(&text[done..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kernel: &str, expected: Result<&str, &str>) {
        let squash = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        let got = compose(&[("TM", 2)], kernel, &[]);
        match expected {
            Ok(text) => assert_eq!(squash(&got.unwrap()), squash(&format!("const TM: u32 = 2u; {text}"))),
            Err(reason) => assert_eq!(got.unwrap_err().reason, reason),
        }
    }

    #[test]
    fn text_without_marked_loops_is_untouched() {
        check("for (var i = 0u; i < n; i++) { f(i); }", Ok("for (var i = 0u; i < n; i++) { f(i); }"));
    }

    #[test]
    fn a_marked_loop_is_written_out() {
        check(
            "for (var m = 0u; m < TM; m++) { // unroll\n a[m] = mm + p.m + m;\n}",
            Ok("{ a[0u] = mm + p.m + 0u; } { a[1u] = mm + p.m + 1u; }"),
        );
    }

    #[test]
    fn loops_nest_and_bounds_multiply() {
        check(
            "for (var m = 0u; m < TM; m++) { // unroll\nfor (var c = 0u; c < TM * 2u / 4u; c++) { // unroll\nf(m, c);\n}\n}",
            Ok("{ { f(0u, 0u); } } { { f(1u, 0u); } }"),
        );
    }

    #[test]
    fn what_cannot_be_unrolled_is_named() {
        check(
            "for (var m = 0u; m < XX; m++) { // unroll\n}",
            Err("the bound names a constant that this text lacks"),
        );
        check(
            "for (var m = 1u; m < TM; m++) { // unroll\n}",
            Err("the form is `for (var i = 0u; i < BOUND; i++) { // unroll`"),
        );
        check("for (var m = 0u; m < TM; m++) { // unroll\n", Err("its end is missing"));
        check("for (var m = 0u; m < 65u; m++) { // unroll\n}", Err("more than 64 copies"));
    }
}
