//! `/openapi.json`: the API described in OpenAPI 3.1, so that clients can be made from it and the server held to it.
//!
//! It is made from the constants that the parser reads, and from what is known of the model. Invariant: every path that
//! the router has is described, with every status that it can answer.

mod answers;
mod costs;
mod diagnosis;
mod paths;
mod report;
mod requests;
mod schema;
mod timeline;

use serde_json::{Map, Value, json};

/// What a description says of one server: while its model is being loaded, less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The names that mean its model; none while it is being loaded.
    pub models: Vec<String>,
    /// The largest token id.
    pub largest_token: u32,
    /// The longest prompt and answer together.
    pub max_model_len: Option<u32>,
    /// The names of the files below `/page/`; none where the page is not in this build.
    pub page_files: Vec<&'static str>,
    /// Whether requests need a key.
    pub needs_key: bool,
}

/// The description.
pub fn document(facts: &Facts) -> Value {
    let security = match facts.needs_key {
        true => json!([{ "key": [] }]),
        false => json!([]),
    };
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Firstlight",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API, with a timeline for every request. Fields that are not named here are ignored.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": security,
        "tags": [
            { "name": "answers", "description": "As OpenAI's API has them." },
            { "name": "tokens", "description": "Text to tokens and back, as vLLM has them." },
            { "name": "observation", "description": "Where the time went." },
            { "name": "server", "description": "The server itself." },
        ],
        "paths": paths::paths(facts),
        "components": {
            "securitySchemes": { "key": {
                "type": "http", "scheme": "bearer",
                "description": "One of the server's keys, where it was started with --api-keys.",
            } },
            "headers": paths::headers(),
            "responses": paths::errors(),
            "schemas": schemas(facts),
        },
    })
}

fn schemas(facts: &Facts) -> Map<String, Value> {
    let all = [
        requests::components(facts),
        answers::components(),
        timeline::components(),
        report::components(),
        costs::components(),
        diagnosis::components(),
    ];
    all.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect()
}
