//! A report as one document: the page's template with the figures in it.
//!
//! It knows nothing of what the page makes of them. Invariant: nothing in the figures ends the element that they stand in.

/// What the template has in place of the figures.
const PLACE: &str = "<!-- figures -->";

/// The template with `json` in it; `None` where it has no place for that.
pub fn document(template: &str, json: &str) -> Option<String> {
    let (before, after) = template.split_once(PLACE)?;
    // In JSON the sign stands within texts alone.
    Some([before, &json.replace('<', "\\u003c"), after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_in_their_place_and_end_nothing() {
        let check = |template: &str, json: &str, expected: Option<&str>| {
            assert_eq!(document(template, json).as_deref(), expected);
        };
        check("<a><!-- figures --></a>", "[1]", Some("<a>[1]</a>"));
        let (hostile, written) =
            (r#"["</a><!-- figures -->"]"#, r#"<a>["\u003c/a>\u003c!-- figures -->"]</a>"#);
        check("<a><!-- figures --></a>", hostile, Some(written));
        check("<a></a>", "[1]", None);
    }
}
