//! What of a kernel's text goes into programs: its code, without comments, indentation and empty lines. They are for those
//! who read the files; a browser would download them, and every driver's front end read them, once per unrolled copy.
//!
//! Works while the crate is compiled, never at run time, and knows no more of WGSL than `//`. Invariant: a line of code stays
//! a line, so that what a compiler says of a line can be found in the file by its text; and the mark `// unroll` stays.

/// The mark that [`crate::compose`] goes by.
const MARK: &[u8] = b"// unroll";

/// The text of a file beside the calling one, stripped: a `&'static str`.
macro_rules! wgsl {
    ($path:literal) => {{
        const FILE: &[u8] = include_bytes!($path);
        const LEN: usize = $crate::strip::strip(FILE, &mut []);
        const CODE: [u8; LEN] = {
            let mut code = [0; LEN];
            $crate::strip::strip(FILE, &mut code);
            code
        };
        const TEXT: &str = match std::str::from_utf8(&CODE) {
            Ok(text) => text,
            Err(_) => panic!(concat!($path, " is not UTF-8")),
        };
        TEXT
    }};
}

/// Writes the code of `text` to `out`, as far as there is room; tells how many bytes it has.
pub(crate) const fn strip(text: &[u8], out: &mut [u8]) -> usize {
    let mut written = 0;
    let mut start = 0;
    while start < text.len() {
        let mut end = start;
        while end < text.len() && text[end] != b'\n' {
            end += 1;
        }
        let (from, to) = code_of(text, start, end);
        let mut at = from;
        while at < to {
            if written < out.len() {
                out[written] = text[at];
            }
            written += 1;
            at += 1;
        }
        if from < to {
            if written < out.len() {
                out[written] = b'\n';
            }
            written += 1;
        }
        start = end + 1;
    }
    written
}

/// Where the code of the line `start..end` lies: nothing, if it has none.
const fn code_of(text: &[u8], start: usize, end: usize) -> (usize, usize) {
    let mut from = start;
    while from < end && is_space(text[from]) {
        from += 1;
    }
    let mut to = from;
    while to < end && !begins(text, to, b"//") {
        to += 1;
    }
    if to > from && begins(text, to, MARK) && to + MARK.len() == end {
        return (from, end);
    }
    while to > from && is_space(text[to - 1]) {
        to -= 1;
    }
    (from, to)
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

const fn begins(text: &[u8], at: usize, with: &[u8]) -> bool {
    if text.len() < at + with.len() {
        return false;
    }
    let mut i = 0;
    while i < with.len() {
        if text[at + i] != with[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let mut code = vec![0; strip(text.as_bytes(), &mut [])];
        strip(text.as_bytes(), &mut code);
        assert_eq!(std::str::from_utf8(&code), Ok(expected), "{text:?}");
    }

    #[test]
    fn comments_indentation_and_empty_lines_go() {
        check("// Über all.\n\nfn f() {\n    return;\n}\n", "fn f() {\nreturn;\n}\n");
        check("let a = b / c; // a quotient\n", "let a = b / c;\n");
        check("  \t\n//\n  // unroll\n", "");
        check("no line break", "no line break\n");
        check("carriage\r\n\r\nreturns // too\r\n", "carriage\nreturns\n");
    }

    #[test]
    fn the_mark_stays() {
        let line = "for (var i = 0u; i < 4u; i++) { // unroll\n";
        check(&format!("    {line}"), line);
        check("for (;;) { // unroll not\n", "for (;;) {\n");
    }

    #[test]
    fn a_file_is_stripped_as_a_text_is() {
        check(wgsl!("matmul_lanes_wide.wgsl"), wgsl!("matmul_lanes_wide.wgsl"));
    }
}
