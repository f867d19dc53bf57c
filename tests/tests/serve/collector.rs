//! A stand-in for a collector of telemetry: takes OTLP over HTTP and reads it, or answers as collectors do that are not well.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Takes,
    /// With this status.
    Answers(u16),
    /// Never.
    Hangs,
}

/// What it was sent.
#[derive(Default)]
pub struct Taken {
    pub spans: Vec<Span>,
    /// Those of the last delivery: sums over the server's life.
    pub metrics: Vec<Metric>,
    pub resources: Vec<Resource>,
    /// The heads of all requests, whatever they were answered.
    pub heads: Vec<String>,
}

pub struct Collector {
    pub url: String,
    mood: Arc<Mutex<Mood>>,
    taken: Arc<Mutex<Taken>>,
}

impl Collector {
    pub fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let (mood, taken) = (Arc::new(Mutex::new(mood)), Arc::<Mutex<Taken>>::default());
        let (moods, all) = (Arc::clone(&mood), Arc::clone(&taken));
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (mood, taken) = (Arc::clone(&moods), Arc::clone(&all));
                std::thread::spawn(move || converse(socket, &mood, &taken));
            }
        });
        Self { url, mood, taken }
    }

    pub fn is(&self, mood: Mood) {
        *self.mood.lock().expect("nobody panics in a mood") = mood;
    }

    pub fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("nobody panics while taking")
    }

    pub fn num_requests(&self) -> usize {
        self.taken().heads.len()
    }
}

fn converse(socket: TcpStream, mood: &Mutex<Mood>, taken: &Mutex<Taken>) {
    let mut reader = BufReader::new(socket);
    while let Some((head, body)) = request(&mut reader) {
        taken.lock().expect("nobody panics while taking").heads.push(head.clone());
        let mood = *mood.lock().expect("nobody panics in a mood");
        let status = match mood {
            Mood::Takes => {
                take(&head, &body, &mut taken.lock().expect("nobody panics while taking"));
                200
            }
            Mood::Answers(status) => status,
            // Until the other side has had enough.
            Mood::Hangs => return drop(reader.read(&mut [0])),
        };
        let answer = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
        );
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let mut body = vec![0; length.trim().parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn take(head: &str, body: &[u8], taken: &mut Taken) {
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    if head.starts_with("post /v1/traces ") {
        for of_all in ExportTraceServiceRequest::decode(body).expect("spans").resource_spans {
            taken.resources.extend(of_all.resource);
            taken.spans.extend(of_all.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    } else {
        assert!(head.starts_with("post /v1/metrics "), "{head}");
        for of_all in ExportMetricsServiceRequest::decode(body).expect("metrics").resource_metrics {
            taken.resources.extend(of_all.resource);
            taken.metrics = of_all.scope_metrics.into_iter().flat_map(|scope| scope.metrics).collect();
        }
    }
}

/// An attribute as JSON; null where there is none.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Value {
    let found = attributes.iter().find(|pair| pair.key == name);
    found.and_then(|pair| pair.value.as_ref()).map_or(Value::Null, json_of)
}

fn json_of(value: &AnyValue) -> Value {
    match &value.value {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::BoolValue(flag)) => json!(flag),
        Some(Any::IntValue(number)) => json!(number),
        Some(Any::DoubleValue(number)) => json!(number),
        Some(Any::ArrayValue(list)) => list.values.iter().map(json_of).collect(),
        other => panic!("{other:?} is no kind of value that is sent"),
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
