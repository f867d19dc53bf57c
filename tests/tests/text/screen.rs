//! What a content policy lets out of a text that grows: the same however it is cut, and nothing of what is blocked.

use std::sync::Arc;

use firstlight_engine::policy::{ContentPolicy, Screen};
use firstlight_tests::TestRng;

fn policy(patterns: &[&str]) -> Arc<ContentPolicy> {
    let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
    Arc::new(ContentPolicy::new(&patterns).unwrap_or_else(|error| panic!("{patterns:?}: {error}")))
}

/// Pushes the pieces; everything that came out, how much of it before the end was said, and whether it was blocked.
fn screened<'a>(
    policy: &Arc<ContentPolicy>,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, usize, bool) {
    let mut screen = Screen::new(Arc::clone(policy));
    let mut out = String::new();
    for piece in pieces {
        let screened = screen.push(piece);
        out += &screened.text;
        assert_eq!(screen.shown(), out.len(), "what is shown is counted");
        if screened.blocked {
            assert_eq!((screen.push("more").text, screen.finish().text), (String::new(), String::new()));
            return (out.clone(), out.len(), true);
        }
    }
    let before_end = out.len();
    let last = screen.finish();
    (out + &last.text, before_end, last.blocked)
}

/// `text`, whole, by characters and in random cuts: what comes out and whether it is blocked.
fn check(patterns: &[&str], text: &str, expected: &str, blocked: bool) {
    let policy = policy(patterns);
    assert_eq!(policy.blocks(text), blocked, "{patterns:?} on {text:?}, looked through at once");
    let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    let (out, _, was_blocked) = screened(&policy, characters);
    assert_eq!((out.as_str(), was_blocked), (expected, blocked), "{patterns:?} on {text:?}, by characters");
    let mut random = TestRng::new(7);
    for _ in 0..20 {
        let mut cuts = vec![0, text.len()];
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        cuts.extend((0..3).filter_map(|_| places.get(random.below(places.len().max(1)))));
        cuts.sort_unstable();
        let (out, _, was_blocked) = screened(&policy, cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]));
        assert_eq!(
            (out.as_str(), was_blocked),
            (expected, blocked),
            "{patterns:?} on {text:?}, cut at {cuts:?}"
        );
    }
}

#[test]
fn nothing_of_what_is_blocked_comes_out_however_the_text_is_cut() {
    let phrase = ContentPolicy::phrase("Forbidden fruit");
    let phrase = [phrase.as_str()];
    check(&phrase, "eat the forbidden fruit now", "eat the ", true);
    check(&phrase, "eat the FORBIDDEN \n fruit", "eat the ", true);
    check(&phrase, "forbidden, fruit and forbidden fru", "forbidden, fruit and forbidden fru", false);
    check(&phrase, "forbiddenforbidden fruit", "forbidden", true);
    check(&phrase, "", "", false);
    let dots = ContentPolicy::phrase("a.b?");
    check(&[&dots], "axb a.b? c", "axb ", true);
    let umlaut = ContentPolicy::phrase("ÄPFEL");
    check(&[&umlaut], "zwei äpfel", "zwei ", true);
    check(&["abcd", "bc"], "xabcx", "xa", true);
    check(&["ab", "cd"], "xacdab", "xa", true);
    check(&["(?i)\\d{3}-\\d{4}"], "call 12-3456 or 555-1234!", "call 12-3456 or ", true);
}

#[test]
fn assertions_see_what_stands_before_and_behind() {
    let word = ["(?i)\\bcat\\b"];
    check(&word, "concatenate cats", "concatenate cats", false);
    check(&word, "a Cat.", "a ", true);
    check(&word, "a cat", "a ", true);
    check(&word, "cat", "", true);
    check(&word, "écat cat", "écat ", true);
    check(&word, "caté", "caté", false);
    check(&["^ab"], "cab", "cab", false);
    check(&["^ab"], "abc", "", true);
    check(&["(?m)^ab"], "c\nabc", "c\n", true);
    check(&["ab$"], "abc ab", "abc ", true);
    check(&["ab$"], "ab abc", "ab abc", false);
    check(&["ab\\b", "abc"], "abc", "", true);
    check(&["\\b^ab", "\\bxy"], "xab ab xy", "xab ab ", true);
    check(&["(?m)\\b^ab", "(?m)^xy", "zz"], "xab\nab", "xab\n", true);
    check(&["\\bca", "(?m)^ca", "cat"], "oca oca\nca", "oca oca\n", true);
    check(&["(?:\\b|x)cat"], "ocat xcat", "ocat ", true);
    check(&["\\Bcat"], "cat ocat", "cat o", true);
}

#[test]
fn text_waits_only_where_it_may_be_the_beginning_of_something_and_never_for_long() {
    let check = |patterns: &[&str], text: &str, shown: usize| {
        let (_, before_end, _) = screened(&policy(patterns), [text]);
        assert_eq!(before_end, shown, "{patterns:?} on {} bytes", text.len());
    };
    check(&["forbidden"], "this is for", "this is ".len());
    check(&["forbidden"], "this is form", "this is form".len());
    check(&["\\bcat\\b"], "a cat", "a ".len());
    check(&["x\\d+y"], "x123 x45", "x123 ".len());
    let long = "é".repeat(3000);
    check(&["(?s)é.*b"], &long, 6000 - ContentPolicy::MAX_HELD_BYTES);
    // Longer than what is held back: it is found, and what was not shown by then never is.
    let (out, _, blocked) = screened(&policy(&["(?s)é.*b"]), [long.as_str(), "b and more"]);
    assert!(blocked && out.len() == 6000 - ContentPolicy::MAX_HELD_BYTES, "{} bytes came out", out.len());
}
