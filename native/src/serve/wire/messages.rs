//! The conversation of a chat request.
//!
//! Invariant: what comes out are roles and texts; a part that is no text is refused by name.

use serde_json::{Map, Value};

use firstlight_engine::text::ChatMessage;

use super::fields::Fields;
use crate::serve::errors::ApiError;

/// Reads `messages`.
///
/// # Errors
/// 400 where there is none or one holds what is not built, 422 where one has the wrong shape.
pub fn read(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    match fields.take("messages") {
        None => {
            Err(ApiError::parameter("messages", "messages is missing; send at least one {role, content}"))
        }
        Some(Value::Array(messages)) if messages.is_empty() => {
            Err(ApiError::parameter("messages", "messages is empty; send at least one {role, content}"))
        }
        Some(Value::Array(messages)) => messages.into_iter().enumerate().map(message).collect(),
        Some(_) => Err(ApiError::mistyped("messages", "a list of {role, content}")),
    }
}

fn message((idx, value): (usize, Value)) -> Result<ChatMessage, ApiError> {
    let Value::Object(mut message) = value else {
        return Err(ApiError::mistyped("messages", "a list of {role, content}"));
    };
    let role = match message.remove("role") {
        // OpenAI's newer word for the same; the models here were trained on the older one.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) if role == "tool" || role == "function" => {
            return Err(refused(idx, "the role \"tool\"", "tools are not built"));
        }
        Some(Value::String(role)) => role,
        None => {
            let sentence = format!("message {idx} has no role; it must be such as \"user\"");
            return Err(ApiError::parameter("messages", sentence));
        }
        Some(_) => return Err(ApiError::mistyped("messages", "a list of {role, content}, role a string")),
    };
    let says_something = |value: &Value| !value.is_null() && value.as_array().is_none_or(|a| !a.is_empty());
    for name in ["tool_calls", "function_call", "audio"] {
        if message.get(name).is_some_and(says_something) {
            return Err(refused(idx, name, "send text only"));
        }
    }
    Ok(ChatMessage { role, content: content(idx, &mut message)? })
}

fn content(idx: usize, message: &mut Map<String, Value>) -> Result<String, ApiError> {
    match message.remove("content") {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let texts: Vec<String> =
                parts.into_iter().map(|part| text_part(idx, part)).collect::<Result<_, _>>()?;
            Ok(texts.concat())
        }
        None | Some(Value::Null) => {
            let sentence = format!("message {idx} has no content; send a text");
            Err(ApiError::parameter("messages", sentence))
        }
        Some(_) => {
            Err(ApiError::mistyped("messages", "a list of {role, content}, content a string or text parts"))
        }
    }
}

fn text_part(idx: usize, part: Value) -> Result<String, ApiError> {
    let Value::Object(mut part) = part else {
        return Err(ApiError::mistyped(
            "messages",
            "a list of {role, content}, content a string or text parts",
        ));
    };
    match (part.remove("type"), part.remove("text")) {
        (Some(Value::String(kind)), Some(Value::String(text))) if kind == "text" => Ok(text),
        (Some(Value::String(kind)), _) if kind != "text" => {
            let kind: String = kind.chars().take(40).collect();
            Err(refused(idx, &format!("a part of type {kind:?}"), "send text only"))
        }
        _ => Err(ApiError::mistyped("messages", "text parts such as {\"type\": \"text\", \"text\": ...}")),
    }
}

fn refused(idx: usize, what: &str, advice: &str) -> ApiError {
    let sentence = format!("message {idx} has {what}, which is not supported; {advice}");
    ApiError { code: Some("unsupported_parameter"), ..ApiError::parameter("messages", sentence) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str, expected: Result<&[(&str, &str)], (u16, &str)>) {
        let body = format!("{{\"messages\": {messages}}}");
        let got = read(&mut Fields::read(body.as_bytes()).unwrap());
        match (got, expected) {
            (Ok(got), Ok(expected)) => {
                let got: Vec<_> = got.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
                assert_eq!(got, expected, "{messages}");
            }
            (Err(error), Err((status, part))) => {
                assert_eq!((error.status.as_u16(), error.param), (status, Some("messages")), "{messages}");
                assert!(error.message.contains(part), "{messages}: {}", error.message);
            }
            (got, expected) => panic!("{messages}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn messages_are_roles_and_texts() {
        check(r#"[{"role": "user", "content": "a", "name": "x"}]"#, Ok(&[("user", "a")]));
        check(r#"[{"role": "developer", "content": ""}]"#, Ok(&[("system", "")]));
        let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
        check(parts, Ok(&[("user", "ab")]));
        check("null", Err((400, "missing")));
        check("[]", Err((400, "empty")));
        check("\"hello\"", Err((422, "a list")));
        check("[\"hello\"]", Err((422, "a list")));
        check(r#"[{"content": "a"}]"#, Err((400, "no role")));
        check(r#"[{"role": 1, "content": "a"}]"#, Err((422, "role a string")));
        check(r#"[{"role": "user"}]"#, Err((400, "message 0 has no content")));
        check(r#"[{"role": "user", "content": 5}]"#, Err((422, "content a string")));
        check(r#"[{"role": "tool", "content": "a"}]"#, Err((400, "tools")));
        check(r#"[{"role": "assistant", "content": "", "tool_calls": [{}]}]"#, Err((400, "tool_calls")));
        let image = r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
        check(image, Err((400, "image_url")));
    }
}
