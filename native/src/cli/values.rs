//! The values of flags: what each may be, told in words when it is not.
//!
//! Pure functions of the text. Invariant: an error reads on after "`--flag` is "value"; " and says what is right.

use std::path::PathBuf;

use firstlight_engine::request::Request;
use firstlight_shaders::KvFormat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// How activations are kept between kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// 32-bit floats.
    F32,
    /// 8 bits, for products with 4-bit weights.
    I8,
    /// The engine's choice for the adapter.
    Auto,
}

/// When sets of kernels are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autotune {
    /// On GPUs, once.
    Auto,
    /// On every adapter, once.
    On,
    /// On every adapter, now.
    Again,
    /// Never; what was kept of a trial does not count either.
    Off,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCache {
    /// So, whatever the adapter.
    Stored(KvFormat),
    /// The engine's choice for the adapter.
    Auto,
}

impl KvCache {
    /// The format, where `auto` is the adapter's.
    pub fn format(self, auto: KvFormat) -> KvFormat {
        match self {
            Self::Stored(format) => format,
            Self::Auto => auto,
        }
    }
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is on.
    On,
    /// It is off.
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// How a server's log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("it must be text or json".into()),
    }
}

/// A level, or levels by module, such as `warn,firstlight=debug`.
pub(super) fn log_level(text: &str) -> Result<Targets, String> {
    let wrong = "it must be off, error, warn, info, debug or trace, or a list such as warn,firstlight=debug";
    let text = text.replace(' ', "");
    let targets: Targets = text.parse().map_err(|_| wrong.to_owned())?;
    // A word alone that is no level would be taken for a module of which everything is logged.
    let words = text.split(',').filter(|word| !word.contains('='));
    match words.map(str::parse::<LevelFilter>).all(|level| level.is_ok()) {
        true => Ok(targets),
        false => Err(wrong.to_owned()),
    }
}

/// Where telemetry goes: an address over HTTP.
pub(crate) fn otlp_endpoint(text: &str) -> Result<String, String> {
    let wrong =
        "it must be the address of a collector that takes OTLP over HTTP, such as http://localhost:4318";
    let uri: ureq::http::Uri = text.trim().parse().map_err(|_| wrong.to_owned())?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(
            "a name and a password in it are not sent; give OTEL_EXPORTER_OTLP_HEADERS instead".into()
        );
    }
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    match is_http && names_a_host(&uri) && uri.query().is_none() {
        true => Ok(text.trim().trim_end_matches('/').to_owned()),
        false => Err(wrong.to_owned()),
    }
}

/// Whether `uri`, which has no user's name in it, has a host and no port or one up to 65535.
pub(crate) fn names_a_host(uri: &ureq::http::Uri) -> bool {
    let (Some(authority), Some(host)) = (uri.authority(), uri.host()) else { return false };
    let port = authority.as_str().strip_prefix(host).unwrap_or_default();
    !host.is_empty() && (port.is_empty() || uri.port_u16().is_some())
}

/// `text` as it may be shown: where it has an `@`, what stands before that may be a password.
pub(crate) fn without_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("...@{rest}"),
        None => text.to_owned(),
    }
}

/// Who goes first in a replay: prompts of fewer than so many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgent {
    /// Tokens; 0 makes nobody urgent.
    pub below: u32,
    /// Their priority, -100 to 100: smaller is sooner, and 0 usual.
    pub priority: i32,
}

/// `none`, or `256:-5`.
pub(super) fn urgent(text: &str) -> Result<Urgent, String> {
    if text == "none" {
        return Ok(Urgent::default());
    }
    let parsed = text.split_once(':').and_then(|(below, priority)| {
        Some(Urgent { below: below.parse().ok()?, priority: priority.parse().ok()? })
    });
    parsed.filter(|urgent| Request::PRIORITIES.contains(&urgent.priority)).ok_or_else(|| {
        "it must be none, or tokens of a prompt and the priority of those below, -100 to 100, such as 256:-5"
            .into()
    })
}

pub(super) fn switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err("it must be on or off".into()),
    }
}

/// Where a result goes as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTarget {
    /// Nowhere: the variable that asks every command for JSON says no.
    Nowhere,
    /// Standard output, and nothing else there.
    Stdout,
    /// A file.
    File(PathBuf),
}

/// A file's name, or what [`super::OutputArgs`] takes as yes or no: the two share a variable.
pub(super) fn json_target(text: &str) -> Result<JsonTarget, String> {
    match text.to_ascii_lowercase().as_str() {
        "-" | "1" | "true" | "t" | "yes" | "y" | "on" => Ok(JsonTarget::Stdout),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(JsonTarget::Nowhere),
        "" => Err("it must be a file's name".into()),
        _ => Ok(JsonTarget::File(text.into())),
    }
}

/// The token ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

pub(super) fn activations(text: &str) -> Result<Activations, String> {
    match text {
        "f32" => Ok(Activations::F32),
        "auto" => Ok(Activations::Auto),
        "i8" => Ok(Activations::I8),
        _ => Err("it must be f32, i8 or auto".into()),
    }
}

pub(super) fn autotune(text: &str) -> Result<Autotune, String> {
    match text {
        "auto" => Ok(Autotune::Auto),
        "on" => Ok(Autotune::On),
        "again" => Ok(Autotune::Again),
        "off" => Ok(Autotune::Off),
        _ => Err("it must be auto, on, again or off".into()),
    }
}

pub(super) fn kv_cache(text: &str) -> Result<KvCache, String> {
    let stored = KvFormat::ALL.into_iter().find(|format| format.name() == text);
    match (stored, text) {
        (Some(format), _) => Ok(KvCache::Stored(format)),
        (None, "auto") => Ok(KvCache::Auto),
        _ => Err("it must be f32, f16, q8 or auto".into()),
    }
}

/// Bits of a number that a model is stored in.
pub(super) fn bits(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|bits| (1.0..=64.0).contains(bits));
    number.ok_or_else(|| "it must be a number from 1 to 64, such as 4.5".to_owned())
}

/// A whole number from `least` to `most`.
pub(super) fn whole(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// A name that stands in logs, headers and before paths.
///
/// # Errors
/// It is none, in words.
pub fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = (1..=64).contains(&text.len()) && text.chars().all(fits);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| "it must be 1 to 64 letters, digits, '-', '_' or '.'".into())
}

/// A number whose range the engine knows.
pub(super) fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "it must be a number, such as 0.7".into())
}

/// A number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "it must be a number above 0, such as 2.5".into())
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

pub(super) fn block_size(text: &str) -> Result<u32, String> {
    let size: Option<u32> = text.parse().ok();
    size.filter(|size| (8..=256).contains(size) && size.is_multiple_of(8))
        .ok_or_else(|| "it must be a multiple of 8, from 8 to 256".into())
}

/// A number of bytes, with an optional unit: `1048576`, `512MiB`, `2G`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        unit if digits.trim().parse::<u64>().is_ok() => {
            return Err(format!("the unit {unit} is unknown; use KiB, MiB, GiB, kB, MB or GB"));
        }
        _ => 1,
    };
    let digits = digits.trim();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("it must be a whole number of bytes, such as 536870912 or 512MiB".into());
    }
    let bytes = digits.parse().ok().and_then(|number: u64| number.checked_mul(factor));
    match bytes {
        Some(0) => Err("it must be above 0".into()),
        Some(bytes) => Ok(bytes),
        None => Err("that is more than any memory".into()),
    }
}

/// `1,2,3`, with spaces where one likes.
pub(super) fn token_ids(text: &str) -> Result<TokenIds, String> {
    let number = |word: &str| {
        let word = word.trim();
        word.parse().map_err(|_| format!("{word:?} is no token id, give numbers such as 1,2,3"))
    };
    text.split(',').map(number).collect::<Result<_, String>>().map(TokenIds)
}

/// The one word that stands without a flag.
pub(super) fn dash(text: &str) -> Result<String, String> {
    match text {
        "-" => Ok(text.to_owned()),
        _ => Err("give the prompt with -p TEXT, with -f FILE, or with - for standard input".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: PartialEq + std::fmt::Debug>(got: Result<T, String>, expected: Result<T, &str>) {
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason:?} says {part:?}"),
            (got, expected) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn bytes_take_units() {
        check(bytes("1048576"), Ok(1 << 20));
        check(bytes("2GiB"), Ok(2 << 30));
        check(bytes("3 MB"), Ok(3_000_000));
        for wrong in ["-1", "", "1é", "1.5G", "NaN", "inf", "+1", "GiB", "1e9"] {
            check(bytes(wrong), Err("whole number of bytes"));
        }
        check(bytes("3parsecs"), Err("parsecs"));
        check(bytes("0"), Err("above 0"));
        check(bytes("99999999999G"), Err("more than any memory"));
        check(bytes("99999999999999999999999"), Err("more than any memory"));
    }

    #[test]
    fn numbers_say_their_range() {
        let small = whole(1, 256);
        check(small("1"), Ok(1));
        check(small("256"), Ok(256));
        for wrong in ["0", "257", "-1", "NaN", "", "1.5", "é", "99999999999999999999999"] {
            check(small(wrong), Err("from 1 to 256"));
        }
        check(seed("18446744073709551615"), Ok(u64::MAX));
        check(seed("-1"), Err("18446744073709551615"));
        check(number("-0.5"), Ok(-0.5));
        check(number("warm"), Err("such as 0.7"));
        check(block_size("24"), Ok(24));
        check(block_size("12"), Err("multiple of 8"));
        check(block_size("264"), Err("8 to 256"));
    }

    #[test]
    fn words_are_what_they_may_be() {
        check(urgent("none"), Ok(Urgent::default()));
        check(urgent("256:-5"), Ok(Urgent { below: 256, priority: -5 }));
        for wrong in ["", "256", "256:", ":-5", "256:101", "-1:5", "a:b"] {
            check(urgent(wrong), Err("such as 256:-5"));
        }
        check(token_ids("1, 2,3"), Ok(TokenIds(vec![1, 2, 3])));
        for wrong in ["1,,2", "x", "", "-2", "4294967296"] {
            check(token_ids(wrong), Err("no token id"));
        }
        check(activations("f32"), Ok(Activations::F32));
        check(activations("i8"), Ok(Activations::I8));
        check(activations("bf16"), Err("f32, i8 or auto"));
        check(autotune("again"), Ok(Autotune::Again));
        check(autotune("yes"), Err("auto, on, again or off"));
        check(kv_cache("f16"), Ok(KvCache::Stored(KvFormat::F16)));
        check(kv_cache("auto"), Ok(KvCache::Auto));
        check(kv_cache("i8"), Err("f32, f16, q8 or auto"));
        check(dash("hello"), Err("-p TEXT"));
        check(json_target("-"), Ok(JsonTarget::Stdout));
        check(json_target("1"), Ok(JsonTarget::Stdout));
        check(json_target("False"), Ok(JsonTarget::Nowhere));
        check(json_target("./1"), Ok(JsonTarget::File("./1".into())));
        check(json_target(""), Err("file"));
    }

    #[test]
    fn logs_and_telemetry_are_told_what_is_right() {
        check(log_format("json"), Ok(LogFormat::Json));
        check(log_format("xml"), Err("text or json"));
        for right in ["info", "OFF", "warn,firstlight=debug", "warn, firstlight::note=info"] {
            assert!(log_level(right).is_ok(), "{right}");
        }
        for wrong in ["loud", "firstlight", "firstlight=loud", "info,=="] {
            assert!(log_level(wrong).is_err(), "{wrong}");
        }
        check(otlp_endpoint("http://localhost:4318/"), Ok("http://localhost:4318".into()));
        check(otlp_endpoint("https://collector.example/otlp"), Ok("https://collector.example/otlp".into()));
        for wrong in
            ["localhost:4318", "grpc://localhost:4317", "", "http://", "http://a/?b=c", "http://a:99999"]
        {
            check(otlp_endpoint(wrong), Err("such as http://localhost:4318"));
        }
        for wrong in ["http://user:secret@collector", "https://user@collector:4318/otlp"] {
            check(otlp_endpoint(wrong), Err("OTEL_EXPORTER_OTLP_HEADERS"));
        }
        check(otlp_endpoint("http://collector/a@b"), Ok("http://collector/a@b".into()));
        for (text, shown) in [("http://a:4318", "http://a:4318"), ("http://u:se@cr/et@a", "...@a")] {
            assert_eq!(without_password(text), shown);
        }
    }
}
