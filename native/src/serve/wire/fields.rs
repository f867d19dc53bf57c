//! A request's JSON object, field by field, so that every complaint names its field.
//!
//! `null` counts as absent; of a key that stands twice the last counts. Invariant: no number is rounded or cut silently.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::ranges::NumberRange;
use crate::serve::errors::ApiError;

/// The fields of one object.
#[derive(Debug, Default)]
pub struct Fields {
    map: Map<String, Value>,
}

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 where it is no JSON or no object.
    pub fn read(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map }),
            Ok(_) => Err(ApiError::invalid("the body is JSON but no object; send {\"model\": ..., ...}")),
            Err(error) => Err(ApiError::invalid(format!("the body is no valid JSON: {error}"))),
        }
    }

    /// A field that holds an object.
    ///
    /// # Errors
    /// 422 where it is something else.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Self>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { map })),
            Some(_) => Err(ApiError::mistyped(name, "an object")),
        }
    }

    /// Takes a field out; `null` counts as absent.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// A number within `range`, as a 32-bit float.
    ///
    /// # Errors
    /// 422 where it is no number, 400 where it is outside.
    pub fn number(&mut self, name: &'static str, range: NumberRange) -> Result<Option<f32>, ApiError> {
        self.take(name).map(|value| number(name, &value, range)).transpose()
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// 422 where it is no number, 400 where it is not whole or outside.
    pub fn whole(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        if !value.is_number() {
            return Err(ApiError::mistyped(name, "a whole number"));
        }
        match whole(&value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = (range.start(), range.end());
                let range = match *most {
                    i64::MAX => format!("a whole number, at least {least}"),
                    _ => format!("a whole number from {least} to {most}"),
                };
                Err(ApiError::parameter(name, format!("{name} is {value}; it must be {range}")))
            }
        }
    }

    /// A truth value.
    ///
    /// # Errors
    /// 422 where it is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let value = self.take(name);
        value.map(|v| v.as_bool().ok_or_else(|| ApiError::mistyped(name, "true or false"))).transpose()
    }

    /// A text.
    ///
    /// # Errors
    /// 422 where it is something else.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::mistyped(name, "a string")),
        }
    }
}

/// A number within `range` as a 32-bit float; one that is too small for it comes out as the smallest there is, not as 0.
///
/// # Errors
/// 422 where it is no number, 400 where it is outside.
pub fn number(name: &'static str, value: &Value, range: NumberRange) -> Result<f32, ApiError> {
    let Some(number) = value.as_f64() else { return Err(ApiError::mistyped(name, "a number")) };
    if !range.contains(number) {
        return Err(ApiError::parameter(name, format!("{name} is {value}; it must be {range}")));
    }
    let single = number as f32;
    Ok(if single == 0.0 && number > 0.0 { f32::MIN_POSITIVE } else { single })
}

/// A number without a fraction, however it is written: 1.0 is 1.
pub fn whole(value: &Value) -> Option<i64> {
    /// Up to here a float names every whole number.
    const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let exact = |number: &f64| number.fract() == 0.0 && number.abs() <= EXACT;
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|number| number as i64))
}

#[cfg(test)]
mod tests {
    use super::super::ranges;
    use super::*;

    fn check<T: PartialEq + std::fmt::Debug>(
        value: &str,
        read: impl Fn(&mut Fields) -> Result<Option<T>, ApiError>,
        expected: Result<Option<T>, (u16, &str)>,
    ) {
        let mut fields = Fields::read(format!("{{\"x\": {value}}}").as_bytes()).unwrap();
        let got = read(&mut fields);
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{value}"),
            (Err(error), Err((status, part))) => {
                assert_eq!((error.status.as_u16(), error.param), (status, Some("x")), "{value}");
                assert!(error.message.contains(part), "{value}: {}", error.message);
            }
            (got, expected) => panic!("{value}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn a_field_is_what_it_must_be_or_is_named() {
        let whole = |fields: &mut Fields| fields.whole("x", 0..=10);
        check("10", whole, Ok(Some(10)));
        check("10.0", whole, Ok(Some(10)));
        check("null", whole, Ok(None));
        for outside in ["-1", "11", "1.5", "1e300", "99999999999999999999999"] {
            check(outside, whole, Err((400, "whole number from 0 to 10")));
        }
        check("\"1\"", whole, Err((422, "wrong type")));
        check("0", |fields| fields.whole("x", 1..=i64::MAX), Err((400, "at least 1")));
        let temperature = |fields: &mut Fields| fields.number("x", ranges::TEMPERATURES);
        check("0.5", temperature, Ok(Some(0.5)));
        check("100", temperature, Ok(Some(100.0)));
        for outside in ["1e300", "100.0000001", "-1e-300"] {
            check(outside, temperature, Err((400, "it must be 0 to 100")));
        }
        check("[]", temperature, Err((422, "a number")));
        check("1e-300", |fields| fields.number("x", ranges::TOP_P), Ok(Some(f32::MIN_POSITIVE)));
        check("0", |fields| fields.number("x", ranges::TOP_P), Err((400, "above 0, at most 1")));
        check("1", |fields| fields.flag("x"), Err((422, "true or false")));
        check("{}", |fields| fields.text("x"), Err((422, "a string")));
    }

    #[test]
    fn what_is_no_object_is_told() {
        for (body, part) in [
            (&b"[]"[..], "no object"),
            (b"{\"x\": NaN}", "no valid JSON"),
            (b"{\"x\": 1e999}", "no valid JSON"),
            (b"{\"x\": \"\xff\"}", "no valid JSON"),
            (b"", "no valid JSON"),
        ] {
            let error = Fields::read(body).unwrap_err();
            assert!(error.status == 400 && error.message.contains(part), "{}", error.message);
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(Fields::read(format!("{{\"x\": {deep}}}").as_bytes()).unwrap_err().status, 400);
    }
}
