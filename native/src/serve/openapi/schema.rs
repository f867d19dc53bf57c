//! JSON schemas (2020-12) of small things, from which the larger ones are put together.
//!
//! Invariant: an object of an answer has the fields that are named and no others; one of a request may have more, which
//! are ignored.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::serve::wire::ranges::NumberRange;

/// A field of an object: its name and its schema.
pub(super) type Field = (&'static str, Value);

/// The schema under this name among the components.
pub(super) fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(super) fn null() -> Value {
    json!({ "type": "null" })
}

/// A whole number within `range`.
pub(super) fn whole(range: &RangeInclusive<i64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}

/// How many there are.
pub(super) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// An instant or a duration in nanoseconds, below 2^53.
pub(super) fn nanos() -> Value {
    whole(&(0..=(1 << f64::MANTISSA_DIGITS) - 1))
}

/// A number within `range`.
pub(super) fn number(range: NumberRange) -> Value {
    // Whole ends are shown without a fraction.
    let end = |end: f64| if end.fract() == 0.0 { json!(end as i64) } else { json!(end) };
    let least = if range.is_open { "exclusiveMinimum" } else { "minimum" };
    json!({ "type": "number", least: end(range.least), "maximum": end(range.most) })
}

/// A number without bounds.
pub(super) fn figure() -> Value {
    json!({ "type": "number" })
}

/// A part of a whole.
pub(super) fn share() -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": 1 })
}

pub(super) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// A list of exactly these.
pub(super) fn tuple(items: &[Value]) -> Value {
    json!({ "type": "array", "prefixItems": items, "items": false, "minItems": items.len() })
}

/// One of these values.
pub(super) fn one_of(values: impl IntoIterator<Item = impl Into<Value>>) -> Value {
    json!({ "enum": values.into_iter().map(Into::into).collect::<Vec<Value>>() })
}

/// One of these words.
pub(super) fn word(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

pub(super) fn any_of(schemas: impl IntoIterator<Item = Value>) -> Value {
    json!({ "anyOf": schemas.into_iter().collect::<Vec<_>>() })
}

/// The schema, or null.
pub(super) fn or_null(mut schema: Value) -> Value {
    let kind = schema.get("type").cloned();
    let values = schema.get_mut("enum").and_then(Value::as_array_mut);
    if kind.is_none() && values.is_none() {
        return any_of([schema, null()]);
    }
    if let Some(values) = values {
        values.push(Value::Null);
    }
    if let Some(kind) = kind {
        schema["type"] = json!([kind, "null"]);
    }
    schema
}

/// The schema with a sentence about it.
pub(super) fn about(sentence: &str, mut schema: Value) -> Value {
    schema["description"] = sentence.into();
    schema
}

/// The schema with further keywords.
pub(super) fn with(mut schema: Value, keywords: Value) -> Value {
    if let (Some(schema), Value::Object(keywords)) = (schema.as_object_mut(), keywords) {
        schema.extend(keywords);
    }
    schema
}

fn object(
    required: impl IntoIterator<Item = Field>,
    optional: impl IntoIterator<Item = Field>,
    is_closed: bool,
) -> Value {
    let mut properties = Map::new();
    let mut names = Vec::new();
    for (name, schema) in required {
        names.push(name);
        properties.insert(name.to_owned(), schema);
    }
    properties.extend(optional.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    let mut object = json!({ "type": "object", "properties": properties });
    if !names.is_empty() {
        object["required"] = json!(names);
    }
    if is_closed {
        object["additionalProperties"] = false.into();
    }
    object
}

/// An object of an answer: these fields always, those sometimes, and no others.
pub(super) fn answer<const N: usize, const M: usize>(always: [Field; N], sometimes: [Field; M]) -> Value {
    object(always, sometimes, true)
}

/// An object of a request: these fields, perhaps those, and whatever is ignored.
pub(super) fn request(required: Vec<Field>, optional: Vec<Field>) -> Value {
    object(required, optional, false)
}

/// A pattern for the whole numbers from 0 to `most`, written without leading zeros.
pub(super) fn decimal_up_to(most: u32) -> String {
    let any = |count: usize| match count {
        0 => String::new(),
        1 => "[0-9]".to_owned(),
        count => format!("[0-9]{{{count}}}"),
    };
    let written = most.to_string();
    let mut shapes = vec!["0".to_owned()];
    shapes.extend((1..written.len()).map(|len| format!("[1-9]{}", any(len - 1))));
    // Those of as many digits: equal up to one digit, smaller there.
    for (idx, digit) in written.char_indices() {
        let (before, after) = (&written[..idx], any(written.len() - idx - 1));
        match (if idx == 0 { '1' } else { '0' }, digit) {
            (least, digit) if digit <= least => {}
            (least, digit) => {
                let smaller = char::from(digit as u8 - 1);
                shapes.push(format!("{before}[{least}-{smaller}]{after}"));
            }
        }
    }
    if most > 0 {
        shapes.push(written);
    }
    format!("^(?:{})$", shapes.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `text` fits one of a pattern's alternatives, which are made of digits, `[a-b]` and `{n}` only.
    fn fits(pattern: &str, text: &str) -> bool {
        let inside = pattern.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$")).expect(pattern);
        inside.split('|').any(|shape| {
            let mut classes: Vec<(char, char)> = Vec::new();
            let mut chars = shape.chars();
            while let Some(c) = chars.next() {
                match c {
                    '[' => {
                        let class: String = chars.by_ref().take_while(|c| *c != ']').collect();
                        let (least, most) = class.split_once('-').expect(shape);
                        classes.push((least.parse().expect(shape), most.parse().expect(shape)));
                    }
                    '{' => {
                        let count: String = chars.by_ref().take_while(|c| *c != '}').collect();
                        let last = *classes.last().expect(shape);
                        classes.extend(vec![last; count.parse::<usize>().expect(shape) - 1]);
                    }
                    digit => classes.push((digit, digit)),
                }
            }
            let within = |(class, c): (&(char, char), char)| (class.0..=class.1).contains(&c);
            classes.len() == text.chars().count() && classes.iter().zip(text.chars()).all(within)
        })
    }

    #[test]
    fn the_pattern_of_decimals_takes_exactly_those() {
        for most in [0, 1, 9, 10, 19, 99, 100, 101, 255, 1000, 1090] {
            let pattern = decimal_up_to(most);
            for number in 0..=12_000_u32 {
                assert_eq!(fits(&pattern, &number.to_string()), number <= most, "{number}: {pattern}");
            }
            for other in ["", "00", "01", "-1", "+1", " 1", "1.0", "x"] {
                assert!(!fits(&pattern, other), "{other:?}: {pattern}");
            }
        }
        let pattern = decimal_up_to(u32::MAX);
        assert!(fits(&pattern, "4294967295") && !fits(&pattern, "4294967296"), "{pattern}");
    }

    #[test]
    fn null_may_be_added_to_any_schema() {
        assert_eq!(or_null(flag()), json!({ "type": ["boolean", "null"] }));
        assert_eq!(or_null(word(&["a"])), json!({ "type": ["string", "null"], "enum": ["a", null] }));
        assert_eq!(or_null(one_of([1])), json!({ "enum": [1, null] }));
        assert_eq!(or_null(named("X")), any_of([named("X"), null()]));
    }
}
