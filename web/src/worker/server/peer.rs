//! A server as this page reaches it: JSON by GET, and the greeting that says whether it is one of ours.
//!
//! It keeps nothing of what a server says. Invariant: whatever it answers, what comes out is a value or a sentence.

use firstlight_engine::budget::Stack;
use firstlight_engine::report::LatencyReport;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::protocol::{Backend, BackendKind};
use crate::view::address::unreachable;
use crate::view::answer::refusal;
use crate::worker::fetch::{Abort, Answer, Call, FetchError, send};

/// Bytes that an error, or anything else that is short, may have.
pub(super) const SHORT: usize = 64 << 10;
/// Bytes that a report may have.
pub(super) const REPORT: usize = 16 << 20;
/// Bytes that a list may have.
pub(super) const LIST: usize = 64 << 20;

/// Its address, and who asks.
pub(super) struct Peer {
    pub(super) address: String,
    pub(super) api_key: Option<String>,
    pub(super) page_url: String,
}

/// What a server says of itself.
pub(super) struct Greeting {
    /// What asks call its model.
    pub(super) model: String,
    /// When it was started, in Unix seconds.
    pub(super) started: u64,
    pub(super) backend: Backend,
    pub(super) report: LatencyReport,
    /// What steps cost there, where it has measured them.
    pub(super) stack: Option<Stack>,
}

/// Why a server's answer is none.
pub(super) enum Trouble {
    Fetch(FetchError),
    /// A status other than 200, and the server's own words.
    Status(u16, String),
    /// Not what the path should have.
    Unreadable(String),
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

#[derive(Deserialize)]
struct Costs {
    #[serde(default)]
    stack: Option<Stack>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    created: u64,
    #[serde(default)]
    max_model_len: Option<u32>,
}

impl Peer {
    pub(super) async fn send(
        &self,
        path: &str,
        body: Option<&str>,
        abort: &Abort,
    ) -> Result<Answer, FetchError> {
        let url = format!("{}{path}", self.address);
        send(&Call { url: &url, api_key: self.api_key.as_deref(), body }, abort).await
    }

    /// The whole answer of a GET.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: usize,
        abort: &Abort,
    ) -> Result<T, Trouble> {
        let answer = self.send(path, None, abort).await?;
        let body = good(answer, limit).await?;
        serde_json::from_slice(&body).map_err(|error| Trouble::Unreadable(format!("{path}: {error}")))
    }

    /// Asks who is there.
    pub(super) async fn greet(&self, abort: &Abort) -> Result<Greeting, Trouble> {
        good(self.send("/health", None, abort).await?, SHORT).await?;
        let models: Models = self.get("/v1/models", REPORT, abort).await?;
        let Some(model) = models.data.into_iter().next() else {
            return Err(Trouble::Unreadable("/v1/models names no model".to_owned()));
        };
        let report: LatencyReport = self.get("/v1/report", REPORT, abort).await?;
        let context = &report.context;
        let backend = Backend {
            kind: BackendKind::Server,
            url: Some(self.address.clone()),
            model: context.model.clone(),
            adapter: context.adapter.clone(),
            slots: Some(context.slots),
            max_model_len: model.max_model_len,
            chat: self.chats(abort).await,
            kept: false,
            bench: None,
        };
        // A server of another version has no such path.
        let costs: Option<Costs> = self.get("/v1/costs", SHORT, abort).await.ok();
        let stack = costs.and_then(|costs| costs.stack);
        Ok(Greeting { model: model.id, started: model.created, backend, report, stack })
    }

    /// Whether conversations can be had: only a model with a chat template makes tokens of one.
    async fn chats(&self, abort: &Abort) -> bool {
        let body = json!({ "messages": [{ "role": "user", "content": "?" }] }).to_string();
        match self.send("/tokenize", Some(&body), abort).await {
            Ok(answer) => answer.status() != 400,
            // Whatever it was, the next prompt tells it better.
            Err(_) => true,
        }
    }

    /// What went wrong, for a person.
    pub(super) fn sentence(&self, trouble: &Trouble) -> String {
        let address = &self.address;
        match trouble {
            Trouble::Fetch(FetchError::Unreachable(_)) => unreachable(address, &self.page_url),
            Trouble::Fetch(error) => format!("{address} {}.", error.predicate()),
            Trouble::Status(404, _) => {
                format!("{address} has no such path: it is no server of Firstlight, or of another version.")
            }
            Trouble::Status(_, words) => format!("{address} does not take it: {words}"),
            Trouble::Unreadable(what) => format!(
                "{address} answers what this page cannot read; it is no server of Firstlight, or of another version ({what})."
            ),
        }
    }
}

/// The body of an answer with status 200.
async fn good(answer: Answer, limit: usize) -> Result<Vec<u8>, Trouble> {
    let status = answer.status();
    if status == 200 {
        return Ok(answer.whole(limit).await?);
    }
    let retry_after = answer.header("retry-after");
    let body = answer.whole(SHORT).await.unwrap_or_default();
    let (_, words) = refusal(status, &body, retry_after.as_deref());
    Err(Trouble::Status(status, words.unwrap_or_default()))
}

/// As [`good`], for an answer that is read piece by piece.
pub(super) async fn begun(answer: Answer) -> Result<Answer, Trouble> {
    match answer.status() {
        200 => Ok(answer),
        _ => Err(good(answer, SHORT).await.err().unwrap_or_else(|| Trouble::Unreadable(String::new()))),
    }
}
