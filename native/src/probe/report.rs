//! What a probe found, as figures.
//!
//! Pure: exchanges in, figures out; integers of nanoseconds. Invariant: client TTFT = server TTFT + what lies between,
//! by `==`, for every answer of a server that tells its own.

use std::collections::BTreeMap;

use serde::Serialize;

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::Distribution;

use super::account::Account;
use super::exchange::Exchange;
use super::verdict::{Judgement, Kind, judge};

/// What was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Asked {
    /// The server.
    pub url: String,
    /// The model that was named.
    pub model: Option<String>,
    /// Chats.
    pub requests: u32,
    /// At once, at most.
    pub concurrency: u32,
    /// Tokens of each.
    pub max_tokens: u32,
}

/// The figures.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// What was asked.
    #[serde(flatten)]
    pub asked: Asked,
    /// Chats that were answered.
    pub answered: usize,
    /// What became of the others.
    pub failures: Vec<String>,
    /// From the first request to the last end.
    pub wall: Nanos,
    /// Until a connection was there.
    pub connect: Option<Distribution>,
    /// From the last write of a request to the first text.
    pub ttft: Option<Distribution>,
    /// The same as the server measured it.
    pub server_ttft: Option<Distribution>,
    /// Client TTFT less server TTFT: network and proxies.
    pub between: Option<Distribution>,
    /// On the way in by a proxy's stamp: an estimate.
    pub upstream_estimate: Option<Distribution>,
    /// Answers that were at the server before the proxy had them, by the two clocks: no estimate.
    pub clocks_differ: usize,
    /// Between two pieces of text.
    pub inter_token: Option<Distribution>,
    /// To the end of the answer.
    pub total: Option<Distribution>,
    /// Who answered how many.
    pub replicas: BTreeMap<String, usize>,
    /// Answers whose server says a longer TTFT than the client waited: a defect.
    pub impossible: usize,
    /// Answers whose parts do not sum: a defect.
    pub unsummed: usize,
    /// Whether something buffers.
    pub verdict: Verdict,
    /// Each answer.
    pub answers: Vec<AnswerFigures>,
}

/// One answer.
#[derive(Clone, Debug, Serialize)]
pub struct AnswerFigures {
    /// Its id at the server.
    pub request_id: Option<String>,
    /// Who answered.
    pub replica: Option<String>,
    /// Until the connection was there.
    pub connect: Nanos,
    /// To the first text.
    pub ttft: Nanos,
    /// To the end.
    pub total: Nanos,
    /// Pieces of text.
    pub pieces: usize,
    /// Tokens, where the server counts them.
    pub tokens: Option<u64>,
    /// The server's own account.
    pub server: Option<Account>,
    /// Client TTFT less server TTFT; absent where the server says none.
    pub between: Option<i128>,
    /// What became of its stream.
    pub judgement: Option<Judgement>,
}

/// Over all answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What most of those say that say anything.
    pub kind: Option<Kind>,
    /// Answers that say it.
    pub by: usize,
    /// Answers that were judged.
    pub of: usize,
    /// The figures of the one whose first text came latest, of those that say it.
    pub evidence: Option<Judgement>,
}

impl AnswerFigures {
    fn of(exchange: Exchange) -> Self {
        let made = exchange.account.as_ref().map(|account| account.made.as_slice());
        let judgement = judge(&exchange.arrivals, made);
        let ttft = exchange.arrivals.first().copied().unwrap_or(exchange.total);
        let server = exchange.account.as_ref().and_then(|account| account.ttft);
        Self {
            request_id: exchange.request_id,
            replica: exchange.replica,
            connect: exchange.connect,
            ttft,
            total: exchange.total,
            pieces: exchange.arrivals.len(),
            tokens: exchange.tokens,
            between: server.map(|server| i128::from(ttft) - i128::from(server)),
            server: exchange.account,
            judgement,
        }
    }
}

impl Verdict {
    fn over(answers: &[AnswerFigures]) -> Self {
        let judged: Vec<Judgement> = answers.iter().filter_map(|answer| answer.judgement).collect();
        let by = |kind: Kind| judged.iter().filter(|judgement| judgement.kind == kind).count();
        // Of as many the last: one lump may be an accident, and one stream is not.
        let kinds = [Kind::Unsuspicious, Kind::Suspected, Kind::Buffered, Kind::Streamed];
        let most = kinds.into_iter().max_by_key(|kind| by(*kind)).filter(|kind| by(*kind) > 0);
        let kind = most.or_else(|| judged.first().map(|judgement| judgement.kind));
        let of_kind = judged.iter().filter(|judgement| Some(judgement.kind) == kind);
        Self {
            kind,
            by: kind.map_or(0, by),
            of: judged.len(),
            evidence: of_kind.max_by_key(|judgement| judgement.first_arrived).copied(),
        }
    }
}

impl ProbeReport {
    /// The figures of `exchanges`.
    pub fn new(asked: Asked, exchanges: Vec<Exchange>, failures: Vec<String>, wall: Nanos) -> Self {
        let mut gaps: Vec<Nanos> = exchanges
            .iter()
            .flat_map(|exchange| exchange.arrivals.windows(2).map(|pair| pair[1].saturating_sub(pair[0])))
            .collect();
        let mut replicas = BTreeMap::new();
        for name in exchanges.iter().filter_map(|exchange| exchange.replica.clone()) {
            *replicas.entry(name).or_default() += 1;
        }
        let answers: Vec<AnswerFigures> = exchanges.into_iter().map(AnswerFigures::of).collect();
        let of = |figure: &dyn Fn(&AnswerFigures) -> Option<Nanos>| {
            Distribution::of(&mut answers.iter().filter_map(figure).collect::<Vec<_>>())
        };
        Self {
            answered: answers.len(),
            wall,
            connect: of(&|answer| Some(answer.connect)),
            ttft: of(&|answer| Some(answer.ttft)),
            server_ttft: of(&|answer| answer.server.as_ref()?.ttft),
            between: of(&|answer| Nanos::try_from(answer.between?).ok()),
            upstream_estimate: of(&|answer| Nanos::try_from(answer.server.as_ref()?.upstream?).ok()),
            inter_token: Distribution::of(&mut gaps),
            total: of(&|answer| Some(answer.total)),
            clocks_differ: answers
                .iter()
                .filter(|answer| answer.server.as_ref().and_then(|a| a.upstream).is_some_and(|ns| ns < 0))
                .count(),
            replicas,
            impossible: answers.iter().filter(|answer| answer.between.is_some_and(|ns| ns < 0)).count(),
            unsummed: answers.iter().filter(|answer| answer.server.as_ref().is_some_and(|a| !a.sums)).count(),
            verdict: Verdict::over(&answers),
            failures,
            asked,
            answers,
        }
    }

    /// The answer that holds the median TTFT, of those whose server tells its own.
    pub fn median(&self) -> Option<&AnswerFigures> {
        let mut told: Vec<&AnswerFigures> =
            self.answers.iter().filter(|answer| answer.between.is_some()).collect();
        told.sort_by_key(|answer| answer.ttft);
        told.get(told.len().checked_sub(1)? / 2).copied()
    }
}
