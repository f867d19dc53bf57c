//! Where telemetry goes and what it is called: the command line's word first, then OpenTelemetry's own variables.
//!
//! Pure: the environment is an argument. The variables are those of
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/> and of the OTLP exporter's page beside
//! it. Invariant: without an address there are no settings.

use std::time::Duration;

use ureq::http::{HeaderName, HeaderValue};

use crate::cache::Environment;
use crate::cli::{otlp_endpoint, without_password};
use crate::failure::Failure;

/// The text of a variable.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where spans go; `None` for nowhere.
    pub traces: Option<Destination>,
    /// Where metrics go; `None` for nowhere.
    pub metrics: Option<Destination>,
    /// What the server is called.
    pub service_name: String,
    /// What else it is said to be.
    pub resource: Vec<(String, String)>,
    /// How long spans wait for others to go with.
    pub traces_delay: Duration,
    /// Between two deliveries of metrics.
    pub metrics_interval: Duration,
}

/// Where the telemetry of one kind goes, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    /// The whole address.
    pub url: String,
    /// Sent with each delivery.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The longest that one delivery may take.
    pub timeout: Duration,
}

impl Settings {
    /// With `endpoint`, or with what the environment says; `None` if that is nothing.
    ///
    /// # Errors
    /// A variable whose value cannot be used, told with its name.
    pub fn read(endpoint: Option<&str>, environment: Environment<'_>) -> Result<Option<Self>, Failure> {
        let get = |name: &str| Some(environment(name)?.to_string_lossy().into_owned());
        if endpoint.is_none() && get("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let address = |name: &str| -> Result<Option<String>, Failure> {
            let checked = |value: String| otlp_endpoint(&value).map_err(|why| wrong(name, &value, &why));
            get(name).map(checked).transpose()
        };
        let base = match endpoint {
            Some(endpoint) => Some(endpoint.trim_end_matches('/').to_owned()),
            None => address("OTEL_EXPORTER_OTLP_ENDPOINT")?,
        };
        let signal = |word: &str, path: &str| -> Result<Option<Destination>, Failure> {
            if get(&format!("OTEL_{word}_EXPORTER")).is_some_and(|exporter| exporter == "none") {
                return Ok(None);
            }
            // The command line's word counts for both; a variable of one signal's own is its whole address.
            let own = match endpoint {
                Some(_) => None,
                None => address(&format!("OTEL_EXPORTER_OTLP_{word}_ENDPOINT"))?,
            };
            let url = own.or_else(|| base.as_ref().map(|base| format!("{base}{path}")));
            url.map(|url| destination(&get, word, url)).transpose()
        };
        let (traces, metrics) = (signal("TRACES", "/v1/traces")?, signal("METRICS", "/v1/metrics")?);
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let resource = pairs(&get, "OTEL_RESOURCE_ATTRIBUTES")?;
        let named = resource.iter().find(|(key, _)| key == "service.name").map(|(_, name)| name.clone());
        Ok(Some(Self {
            traces,
            metrics,
            service_name: get("OTEL_SERVICE_NAME").or(named).unwrap_or_else(|| "firstlight".to_owned()),
            resource,
            traces_delay: milliseconds(&get, "OTEL_BSP_SCHEDULE_DELAY", 5_000)?,
            metrics_interval: milliseconds(&get, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)?,
        }))
    }
}

/// `url`, and what else is said of that signal; its own variables count before those of both.
fn destination(get: Get<'_>, word: &str, url: String) -> Result<Destination, Failure> {
    let variable = |what: &str| {
        let own = format!("OTEL_EXPORTER_OTLP_{word}_{what}");
        get(&own).map_or_else(|| format!("OTEL_EXPORTER_OTLP_{what}"), |_| own)
    };
    let protocol = variable("PROTOCOL");
    if let Some(other) = get(&protocol).filter(|protocol| protocol != "http/protobuf") {
        return Err(wrong(&protocol, &other, "only http/protobuf is spoken here"));
    }
    let timeout = milliseconds(get, &variable("TIMEOUT"), 10_000)?;
    Ok(Destination { url, headers: headers(get, &variable("HEADERS"))?, timeout })
}

fn milliseconds(get: Get<'_>, name: &str, usual: u64) -> Result<Duration, Failure> {
    let Some(value) = get(name) else { return Ok(Duration::from_millis(usual)) };
    let count = value.trim().parse::<u32>().ok().filter(|ms| *ms > 0);
    let count = count.ok_or_else(|| wrong(name, &value, "it must be a number of milliseconds"))?;
    Ok(Duration::from_millis(count.into()))
}

/// The value may be a secret where the variable holds headers: it is not repeated there. Nor is a password in an address.
fn wrong(name: &str, value: &str, why: &str) -> Failure {
    let shown: String = without_password(value).chars().take(80).collect();
    match name.ends_with("HEADERS") {
        true => Failure::usage(format!("{name} cannot be used: {why}")),
        false => Failure::usage(format!("{name} is {shown:?}; {why}")),
    }
}

fn headers(get: Get<'_>, variable: &str) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
    let unusable = || wrong(variable, "", "it must be name=value,name=value");
    let header = |(name, value): (String, String)| {
        let name = name.parse().map_err(|_| unusable())?;
        Ok((name, value.parse().map_err(|_| unusable())?))
    };
    pairs(get, variable)?.into_iter().map(header).collect()
}

/// `key=value,key=value`, percent-encoded.
fn pairs(get: Get<'_>, name: &str) -> Result<Vec<(String, String)>, Failure> {
    let text = get(name).unwrap_or_default();
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
        Some((decoded(key.trim())?, decoded(value.trim())?))
    };
    let pieces = text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
    pieces
        .map(|piece| pair(piece).ok_or_else(|| wrong(name, &text, "it must be key=value,key=value")))
        .collect()
}

/// Without percent signs; `None` where what follows one is no byte, or where the whole is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Settings>, Failure> {
        let environment = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        };
        Settings::read(endpoint, &environment)
    }

    #[test]
    fn nothing_is_sent_unless_somebody_asked_for_it_and_the_command_line_comes_first() {
        let check =
            |endpoint: Option<&str>, variables: &[(&str, &str)], expected: (Option<&str>, Option<&str>)| {
                let settings = read(endpoint, variables).unwrap();
                let got = settings.map_or((None, None), |settings| (settings.traces, settings.metrics));
                let got = (got.0.map(|to| to.url), got.1.map(|to| to.url));
                assert_eq!((got.0.as_deref(), got.1.as_deref()), expected, "{endpoint:?} {variables:?}");
            };
        const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/");
        let both = (Some("http://a:4318/v1/traces"), Some("http://a:4318/v1/metrics"));
        check(None, &[], (None, None));
        check(None, &[HERE], both);
        check(Some("http://a:4318"), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b")], both);
        check(Some("http://a:4318"), &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")], both);
        check(None, &[HERE, ("OTEL_SDK_DISABLED", "true")], (None, None));
        check(None, &[HERE, ("OTEL_TRACES_EXPORTER", "none")], (None, both.1));
        check(None, &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://b/x")], (None, Some("https://b/x")));
    }

    #[test]
    fn names_headers_and_times_are_those_of_the_standard_variables() {
        let settings = read(
            Some("http://a"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x%3D, x-tenant=one"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment.name=caf%C3%A9"),
                ("OTEL_SERVICE_NAME", "mine"),
                ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        let traces = settings.traces.unwrap();
        assert_eq!(sent(&traces), [("authorization", "Bearer x="), ("x-tenant", "one")]);
        assert_eq!(settings.service_name, "mine");
        assert_eq!(settings.resource[1], ("deployment.environment.name".into(), "café".into()));
        let times = (traces.timeout, settings.traces_delay, settings.metrics_interval);
        assert_eq!(times.1, Duration::from_millis(20));
        assert_eq!((times.0, times.2), (Duration::from_secs(10), Duration::from_secs(60)));
    }

    fn sent(with: &Destination) -> Vec<(&str, &str)> {
        with.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
    }

    #[test]
    fn a_signal_s_own_variables_count_before_those_of_both() {
        let settings = read(
            Some("http://a"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=both"),
                ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-tenant=traces"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "20"),
                ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "30"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        let (traces, metrics) = (settings.traces.unwrap(), settings.metrics.unwrap());
        assert_eq!((sent(&traces), traces.timeout.as_millis()), (vec![("x-tenant", "traces")], 20));
        assert_eq!((sent(&metrics), metrics.timeout.as_millis()), (vec![("x-tenant", "both")], 30));
    }

    #[test]
    fn what_cannot_be_used_is_told_by_name_and_secrets_are_not_repeated() {
        let check = |name: &str, value: &str, expected: &str| {
            let told = read(Some("http://a"), &[(name, value)]).unwrap_err().to_string();
            assert!(told.contains(name) && told.contains(expected), "{told}");
            assert!(!told.contains("secret"), "{told}");
        };
        check("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf");
        check("OTEL_EXPORTER_OTLP_HEADERS", "secret", "key=value");
        check("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret", "name=value");
        check("OTEL_RESOURCE_ATTRIBUTES", "a=%zz", "key=value");
        check("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds");
        check("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf");
        check("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0", "milliseconds");
        check("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a b=secret", "name=value");
        for (endpoint, expected) in [
            ("localhost:4317", "http://localhost:4318"),
            ("http://user:secret@a", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("user:secret@a", "OTEL_EXPORTER_OTLP_HEADERS"),
        ] {
            let told = read(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).unwrap_err().to_string();
            assert!(told.contains(expected) && !told.contains("secret"), "{told}");
        }
    }
}
