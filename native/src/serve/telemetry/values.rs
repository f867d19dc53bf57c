//! Attributes in OTLP's form.
//!
//! Pure. Invariant: what does not fit an `i64` is cut at its end, not wrapped.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};

/// The longest text that goes out as a value.
const MAX_TEXT: usize = 1024;

fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

fn short(value: &str) -> String {
    value.chars().take(MAX_TEXT).collect()
}

/// A text.
pub fn text(key: &str, value: &str) -> KeyValue {
    pair(key, Value::StringValue(short(value)))
}

/// Several texts.
pub fn texts<'a>(key: &str, values: impl IntoIterator<Item = &'a str>) -> KeyValue {
    let values = values.into_iter().map(|value| any(Value::StringValue(short(value)))).collect();
    pair(key, Value::ArrayValue(ArrayValue { values }))
}

/// A whole number.
pub fn whole(key: &str, value: impl TryInto<i64>) -> KeyValue {
    pair(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
}

/// A number.
pub fn number(key: &str, value: f64) -> KeyValue {
    pair(key, Value::DoubleValue(value))
}

/// Yes or no.
pub fn flag(key: &str, value: bool) -> KeyValue {
    pair(key, Value::BoolValue(value))
}
