//! The paths: what each takes, and with which statuses it answers.
//!
//! Invariant: an operation has the statuses that all have, and its own.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Facts;
use super::schema::{any_of, named, text, word};
use crate::serve::gateway::QUOTA_HEADERS;

/// What may happen to any request: no host named, a page of another origin, a defect, no more room or not yet ready.
const ALL: [u16; 4] = [400, 403, 500, 503];
/// What may happen to a body.
const BODY: [u16; 6] = [400, 408, 413, 415, 422, 429];

/// An operation; its method is POST where it has a body, else GET.
struct Operation {
    path: &'static str,
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<&'static str>,
    /// The media type and the schema of each form of a good answer.
    good: Vec<(&'static str, Value)>,
    statuses: Vec<u16>,
    /// For everybody, also where there are keys.
    is_open: bool,
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const PLAIN: &str = "text/plain";
const HTML: &str = "text/html";

pub(super) fn paths(facts: &Facts) -> Map<String, Value> {
    let all = [answers(facts), tokens(), observation(), server(facts)];
    all.into_iter().flatten().map(|operation| (operation.path.to_owned(), operation.json())).collect()
}

fn get(path: &'static str, id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    Operation {
        path,
        id,
        tag,
        summary,
        parameters: Vec::new(),
        body: None,
        good: Vec::new(),
        statuses: Vec::new(),
        is_open: false,
    }
}

impl Operation {
    fn good(mut self, media_type: &'static str, schema: Value) -> Self {
        self.good.push((media_type, schema));
        self
    }

    fn takes(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self.statuses.extend(BODY);
        self
    }

    fn parameter(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }

    fn statuses(mut self, statuses: &[u16]) -> Self {
        self.statuses.extend(statuses);
        self
    }

    fn json(self) -> Value {
        let content: Map<String, Value> = self
            .good
            .into_iter()
            .map(|(media_type, schema)| (media_type.to_owned(), json!({ "schema": schema })))
            .collect();
        let mut responses = Map::new();
        let mut headers = common_headers();
        if self.body.is_some() {
            for name in QUOTA_HEADERS.as_flattened() {
                headers[*name] = json!({ "$ref": "#/components/headers/Quota" });
            }
        }
        let good = json!({ "description": "As asked.", "headers": headers, "content": content });
        responses.insert("200".to_owned(), good);
        let key: &[u16] = if self.is_open { &[] } else { &[401] };
        let statuses: BTreeSet<u16> = self.statuses.iter().chain(&ALL).chain(key).copied().collect();
        for status in statuses {
            // Health says the same, and how the server is.
            let name =
                if self.path == "/health" && status == 503 { "Unwell".to_owned() } else { name(status) };
            let reference = json!({ "$ref": format!("#/components/responses/{name}") });
            responses.insert(status.to_string(), reference);
        }
        let mut operation = json!({
            "operationId": self.id, "tags": [self.tag], "summary": self.summary, "responses": responses,
        });
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.into();
        }
        if self.body.is_some() && self.tag == "answers" {
            let by_id = json!({
                "operationId": "getTimelines", "parameters": { "id": "$response.body#/id" },
                "description": "Where the answer's time went.",
            });
            operation["responses"]["200"]["links"] = json!({ "timelines": by_id });
        }
        if self.is_open {
            operation["security"] = json!([]);
        }
        if let Some(body) = self.body {
            let content = json!({ JSON: { "schema": named(body) } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        let method = if self.body.is_some() { "post" } else { "get" };
        json!({ method: operation })
    }
}

/// An event of a stream: what its data is, in JSON, or `[DONE]` where the stream has an end.
fn events(data: Value, has_end: bool) -> Value {
    let data = json!({ "type": "string", "contentMediaType": JSON, "contentSchema": data });
    let data = if has_end { any_of([word(&["[DONE]"]), data]) } else { data };
    json!({
        "type": "object", "required": ["data"], "properties": { "data": data },
        "description": "Each event, as it is read; the stream itself is text.",
    })
}

/// The events of an answer; where it breaks off, one is an error.
fn chunks(chunk: &str) -> Value {
    events(any_of([named(chunk), named("Error")]), true)
}

fn answers(facts: &Facts) -> Vec<Operation> {
    let name = match facts.models.is_empty() {
        true => text(),
        false => word(&facts.models.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    let name = json!({
        "name": "name", "in": "path", "required": true, "schema": name,
        "description": "What the model is called; it may have slashes.",
    });
    vec![
        get("/v1/chat/completions", "createChatCompletion", "answers", "Answers a conversation.")
            .takes("ChatRequest")
            .good(JSON, named("ChatAnswer"))
            .good(EVENTS, chunks("ChatChunk"))
            .statuses(&[404]),
        get("/v1/completions", "createCompletion", "answers", "Continues texts.")
            .takes("CompletionRequest")
            .good(JSON, named("CompletionAnswer"))
            .good(EVENTS, chunks("CompletionChunk"))
            .statuses(&[404]),
        get("/v1/models", "listModels", "answers", "The model that this server has.")
            .good(JSON, named("Models")),
        get("/v1/models/{name}", "getModel", "answers", "The model, by its name.")
            .parameter(name)
            .good(JSON, named("Model"))
            .statuses(&[400, 404]),
    ]
}

fn tokens() -> Vec<Operation> {
    vec![
        get("/tokenize", "tokenize", "tokens", "The tokens of a text or of a conversation.")
            .takes("TokenizeRequest")
            .good(JSON, named("TokenizeAnswer"))
            .statuses(&[404]),
        get("/detokenize", "detokenize", "tokens", "The text of tokens.")
            .takes("DetokenizeRequest")
            .good(JSON, named("DetokenizeAnswer"))
            .statuses(&[404]),
    ]
}

/// `?name=N`.
fn counts(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "query", "schema": { "type": "integer", "minimum": 0, "maximum": u64::MAX },
        "description": description,
    })
}

/// `?last=N`.
fn last(what: &str) -> Value {
    counts("last", &format!("How many {what}, the youngest; more than there are is all."))
}

fn observation() -> Vec<Operation> {
    let id = json!({
        "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 },
        "description": "An answer's id, with or without `#` and the choice's index, or an `x-request-id`.",
    });
    let get = |path, id, summary| get(path, id, "observation", summary);
    let worse_answers = json!({
        "name": "worse_answers", "in": "query", "schema": { "type": "boolean" },
        "description": "Somebody says that the answers are worse: where no figure explains it, the chat template is named.",
    });
    let baseline = "Compare them with so many requests before them; 0 or nothing compares with none.";
    vec![
        get(
            "/v1/costs",
            "getCosts",
            "What steps of this model cost on this adapter, as the doctor measured and kept it.",
        )
        .good(JSON, named("Costs")),
        get(
            "/v1/diagnose",
            "getDiagnosis",
            "Which stage to look at where answers are slow or late, with the evidence.",
        )
        .parameter(counts("last", "Look at so many finished requests, the youngest; by default all."))
        .parameter(counts("baseline_last", baseline))
        .parameter(worse_answers)
        .good(JSON, named("Diagnosis"))
        .statuses(&[400]),
        get("/v1/report", "getReport", "Percentiles, means of parts, gauges: the last requests together.")
            .good(JSON, named("Report")),
        get("/v1/timelines", "listTimelines", "Where the time of finished requests went.")
            .parameter(last("timelines"))
            .good(JSON, named("Timelines"))
            .statuses(&[400]),
        get("/v1/timelines/stream", "streamTimelines", "Every timeline from now on.")
            .good(EVENTS, events(named("Timeline"), false)),
        get(
            "/v1/timelines/running",
            "listRunning",
            "Requests with the engine, as they are between two steps.",
        )
        .good(JSON, named("Running")),
        get("/v1/timelines/{id}", "getTimelines", "The timelines of one request.")
            .parameter(id)
            .good(JSON, named("Timelines"))
            .statuses(&[400, 404]),
        get("/v1/steps", "listSteps", "What the engine's last steps held.")
            .parameter(last("steps"))
            .good(JSON, named("Steps"))
            .statuses(&[400]),
        get("/v1/trace", "getTrace", "The same as a picture: Chrome's trace events.")
            .parameter(last("timelines"))
            .good(JSON, named("ChromeTrace"))
            .statuses(&[400]),
        get("/metrics", "getMetrics", "For Prometheus.").good(PLAIN, text()),
    ]
}

fn server(facts: &Facts) -> Vec<Operation> {
    let file = match facts.page_files.is_empty() {
        true => text(),
        false => word(&facts.page_files),
    };
    let file = json!({
        "name": "file", "in": "path", "required": true, "schema": file, "description": "As the page names it.",
    });
    let mut all = vec![
        get("/health", "getHealth", "server", "Whether requests are answered.").good(JSON, named("Health")),
        get("/openapi.json", "getDescription", "server", "This description.")
            .good(JSON, json!({ "type": "object" })),
        get("/", "getPage", "server", "The page; a sentence where this build has none.")
            .good(HTML, text())
            .good(PLAIN, text())
            .statuses(&[304]),
        get("/page/{file}", "getPageFile", "server", "What the page is made of.")
            .parameter(file)
            .good("text/javascript", text())
            .good("text/css", text())
            .good("image/svg+xml", json!({}))
            .good("application/wasm", json!({}))
            .good(HTML, text())
            .statuses(&[400, 404]),
    ];
    all.iter_mut().for_each(|operation| operation.is_open = true);
    all
}

/// The headers of every answer.
fn common_headers() -> Value {
    let names =
        [("x-request-id", "RequestId"), ("traceparent", "Traceparent"), ("x-firstlight-replica", "Replica")];
    let reference = |(name, component): (&str, &str)| {
        (name.to_owned(), json!({ "$ref": format!("#/components/headers/{component}") }))
    };
    names.map(reference).into_iter().collect::<Map<_, _>>().into()
}

pub(super) fn headers() -> Value {
    json!({
        "RequestId": {
            "required": true, "schema": { "type": "string", "minLength": 1 },
            "description": "Names the request: as it was sent, or made.",
        },
        "Traceparent": {
            "schema": text(), "description": "This server's own span, where the request belongs to a trace (W3C).",
        },
        "Replica": { "schema": text(), "description": "Which of several servers this is, where it has a name." },
        "Quota": { "schema": text(), "description": "Where the caller's use is limited: the limit, what is left, when it is whole again." },
        "RetryAfter": {
            "required": true, "schema": { "type": "integer", "minimum": 1 },
            "description": "Seconds after which to try again.",
        },
    })
}

fn name(status: u16) -> String {
    format!("Status{status}")
}

/// The answers that are none.
pub(super) fn errors() -> Map<String, Value> {
    let sentences = [
        (400, "The request cannot be meant, or asks for what is not built; the message says why."),
        (401, "The key is missing or unknown."),
        (403, "A page of this origin may not ask."),
        (404, "There is no such path, or nothing under that name."),
        (408, "The body did not come, or the deadline ran out."),
        (413, "The body is too long."),
        (415, "The body is not JSON by its header."),
        (422, "A field has the wrong type."),
        (429, "Everything that may wait is taken, or a quota is spent."),
        (500, "A defect of the server, or of its device."),
        (503, "Not ready yet, shutting down, or every connection is taken."),
    ];
    let error = |(status, sentence): (u16, &str)| (name(status), response(status, sentence, named("Error")));
    let mut errors: Map<String, Value> = sentences.into_iter().map(error).collect();
    errors.insert("Unwell".to_owned(), response(503, "It does not take requests now.", named("Unwell")));
    let unchanged =
        json!({ "description": "As it was when it was asked for last.", "headers": common_headers() });
    errors.insert(name(304), unchanged);
    errors
}

fn response(status: u16, sentence: &str, schema: Value) -> Value {
    let mut headers = common_headers();
    if status == 429 || status == 503 {
        headers["retry-after"] = json!({ "$ref": "#/components/headers/RetryAfter" });
    }
    json!({ "description": sentence, "headers": headers, "content": { JSON: { "schema": schema } } })
}
