//! The eight rules as a table, and what they have in common.
//!
//! A rule weighs its evidence and knows nothing of the others but what they found before it: causes stand before what they
//! cause. Invariant: a figure in a sentence stands with its n, and with that of the earlier window where there is one.

mod decode;
mod first_token;
mod host;
mod prompts;
mod transport;

use super::facts::{Answer, Facts};
use super::statistics::{RankTest, mann_whitney, percentile};
use super::{ALPHA_EACH, Case, Certainty, FEWEST, Finding, Silence, Stage};
use crate::clock::Nanos;
use crate::report::blame::Lasted;

/// The percentile that stands beside medians.
pub(super) const PERCENTILE: u32 = 95;
/// By how much a figure has to be larger than in the earlier window.
const GROWTH: f64 = 1.25;
/// How often a request has to be slower than one of the earlier window: a large effect by Vargha and Delaney.
const SUPERIORITY: f64 = 0.71;

/// One line of the table.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What is seen beside an earlier window.
    pub symptom: &'static str,
    /// What is seen where there is none, and nothing can be up or down.
    pub alone: &'static str,
    /// What it needs to be seen.
    pub needs: &'static str,
    /// Where it comes from, unless the evidence says otherwise.
    pub stage: Stage,
    /// What to look at next, unless the evidence says otherwise.
    pub look_at: &'static str,
    /// Weighs the evidence.
    pub(super) weigh: fn(&Case) -> Weighed,
}

/// The table.
pub const RULES: [Rule; 8] = [
    Rule {
        name: "preemption",
        symptom: "throughput down, latency up together",
        alone: "requests are evicted, and computed again",
        needs: "evictions, and what they cost",
        stage: Stage::Preemption,
        look_at: "admission, not kernels: give the KV cache more room (--kv-memory, --kv-blocks), or let fewer requests in at once (--slots)",
        weigh: host::preemption,
    },
    Rule {
        name: "transport",
        symptom: "first token late only at the client",
        alone: "first token late only at the client",
        needs: "time between the first token and its write, or clients' own instants (--probe)",
        stage: Stage::Transport,
        look_at: "what lies between server and client: a proxy that buffers (nginx: `proxy_buffering off`, `gzip off`), or a client that does not read",
        weigh: transport::weigh,
    },
    Rule {
        name: "host",
        symptom: "both up, GPU not busy",
        alone: "requests under way, GPU not busy",
        needs: "time under way in which no step ran, and host parts of the first token's time",
        stage: Stage::Host,
        look_at: "the process, not the GPU",
        weigh: host::weigh,
    },
    Rule {
        name: "first_token",
        symptom: "TTFT p95 up, inter-token unchanged",
        alone: "first tokens wait for their turn",
        needs: "an earlier window, or waits that are most of the first token's time",
        stage: Stage::Queue,
        look_at: "the queue's cause",
        weigh: first_token::weigh,
    },
    Rule {
        name: "decode",
        symptom: "inter-token up, TTFT unchanged",
        alone: "tokens take longer in large batches, or at late positions",
        needs: "an earlier window, or steps with batches and positions that differ",
        stage: Stage::Decode,
        look_at: "inter-token latency against batch and position (`firstlight bench --sweep`)",
        weigh: decode::weigh,
    },
    Rule {
        name: "one_client",
        symptom: "one client slow, others fine",
        alone: "one client slow, others fine",
        needs: "a few prompts that are much longer than the others",
        stage: Stage::ClientPrefill,
        look_at: "that client's prompt lengths; a quota of tokens for its key, or smaller --batch-tokens, keeps them from the others",
        weigh: prompts::one_client,
    },
    Rule {
        name: "bimodal",
        symptom: "TTFT bimodal",
        alone: "TTFT bimodal",
        needs: "first tokens of two kinds, with waits left out",
        stage: Stage::PrefixCache,
        look_at: "the hit rate and what invalidates prefixes: anything that changes at the head of a prompt, such as a date, a name or the order of tools",
        weigh: prompts::bimodal,
    },
    Rule {
        name: "chat_template",
        symptom: "worse answers, no figure moved",
        alone: "worse answers, no figure moved",
        needs: "somebody who says that answers are worse (--worse-answers)",
        stage: Stage::ChatTemplate,
        look_at: "the rendered prompt: `POST /tokenize` with the same messages, and its tokens to `POST /detokenize`",
        weigh: chat_template,
    },
];

/// A finding, or why there is none.
pub(super) type Weighed = Result<Found, (Silence, String)>;

/// What a rule found, before the table's words are put around it.
pub(super) struct Found {
    pub certainty: Certainty,
    pub reason: String,
    pub n: usize,
    pub p_value: Option<f64>,
    pub effect: f64,
    pub evidence: Vec<String>,
    /// Where the evidence says it more exactly than the table.
    pub symptom: Option<&'static str>,
    /// Where the evidence names another than the table.
    pub stage: Option<Stage>,
    pub look_at: Option<String>,
}

impl Found {
    fn new(certainty: Certainty, reason: impl Into<String>, n: usize, effect: f64) -> Self {
        let (evidence, reason) = (Vec::new(), reason.into());
        let (symptom, stage, look_at) = (None, None, None);
        Self { certainty, reason, n, p_value: None, effect, evidence, symptom, stage, look_at }
    }

    fn p(mut self, p_value: f64) -> Self {
        self.p_value = Some(p_value);
        self
    }

    fn says(mut self, sentence: String) -> Self {
        self.evidence.push(sentence);
        self
    }

    fn at(mut self, stage: Stage, look_at: impl Into<String>) -> Self {
        (self.stage, self.look_at) = (Some(stage), Some(look_at.into()));
        self
    }

    /// The symptom in other words than the table's.
    fn seen_as(mut self, symptom: &'static str) -> Self {
        self.symptom = Some(symptom);
        self
    }

    /// With the words of `rule` around it; `symptom` is the one of its two that fits the windows.
    pub(super) fn by(self, rule: &Rule, symptom: &'static str) -> Finding {
        Finding {
            rule: rule.name.into(),
            symptom: self.symptom.unwrap_or(symptom).into(),
            stage: self.stage.unwrap_or(rule.stage),
            certainty: self.certainty,
            reason: self.reason,
            n: self.n,
            p_value: self.p_value,
            effect: self.effect,
            evidence: self.evidence,
            look_at: self.look_at.unwrap_or_else(|| rule.look_at.to_owned()),
        }
    }
}

fn quiet(sentence: String) -> Weighed {
    Err((Silence::Nothing, sentence))
}

fn too_little(n: usize, what: &str) -> Weighed {
    Err((Silence::TooLittle, format!("{n} {what}; it takes {FEWEST} to tell more than chance")))
}

/// A duration for a person.
fn time(ns: impl Into<f64>) -> Lasted {
    Lasted(ns.into().max(0.0) as Nanos)
}

/// The same of a figure that may be missing.
fn some_time(ns: Option<Nanos>) -> String {
    ns.map_or_else(|| "none".to_owned(), |ns| Lasted(ns).to_string())
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `part` of `whole`; 0 of nothing.
fn share(part: Nanos, whole: Nanos) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

/// A figure of both windows.
struct Compared {
    test: RankTest,
    /// The medians and the percentiles, earlier and now.
    medians: [Nanos; 2],
    tails: [Nanos; 2],
    ns: [usize; 2],
}

impl Compared {
    /// `None` where one of the windows has too little.
    fn of(earlier: &[u64], now: &[u64]) -> Option<Self> {
        let test = mann_whitney(earlier, now)?;
        let at = |q| Some([percentile(q, earlier)?, percentile(q, now)?]);
        let ns = [earlier.len(), now.len()];
        let compared = Self { test, medians: at(50)?, tails: at(PERCENTILE)?, ns };
        ns.iter().all(|n| *n >= FEWEST).then_some(compared)
    }

    fn growth(&self) -> f64 {
        self.medians[1] as f64 / (self.medians[0].max(1)) as f64
    }

    /// More than chance, and large.
    fn is_up(&self) -> bool {
        let large = self.test.superiority >= SUPERIORITY && self.growth() >= GROWTH;
        large && self.test.p_up < ALPHA_EACH
    }

    fn sentence(&self, what: &str) -> String {
        let ([before, now], [tail_before, tail_now], [n, m]) = (self.medians, self.tails, self.ns);
        format!(
            "{what}: p50 {} (earlier {}), p{PERCENTILE} {} (earlier {}), n {m} (earlier {n}); a request of now is slower than one of then in {} of all pairs",
            Lasted(now),
            Lasted(before),
            Lasted(tail_now),
            Lasted(tail_before),
            percent(self.test.superiority),
        )
    }
}

/// A mean of both windows: `what: now (earlier then)`.
fn means(case: &Case, what: &str, figure: fn(&Answer) -> Nanos, unit: fn(f64) -> String) -> String {
    let now = unit(case.now.mean(figure));
    match case.earlier {
        Some(earlier) => format!("{what} {now} (earlier {})", unit(earlier.mean(figure))),
        None => format!("{what} {now}"),
    }
}

fn tokens(count: f64) -> String {
    format!("{count:.0} tokens")
}

fn mean_time(ns: f64) -> String {
    time(ns).to_string()
}

/// The median gaps of requests, in both windows.
fn inter_token(earlier: &Facts, now: &Facts) -> Option<Compared> {
    Compared::of(&earlier.own_gaps(), &now.own_gaps())
}

/// Only where somebody asks, and nothing else was found.
fn chat_template(case: &Case) -> Weighed {
    if !case.asked.worse_answers {
        return Err((
            Silence::NotAsked,
            "no figure tells whether answers are worse; say so with --worse-answers".into(),
        ));
    }
    if let Some(first) = case.found.first() {
        let stage = first.stage.name();
        return quiet(format!("figures did move: look at {stage} first"));
    }
    let n = case.now.answers.len();
    let enough = |facts: &Facts| facts.answers.len() >= FEWEST;
    let found = match case.earlier {
        Some(earlier) if enough(earlier) && enough(case.now) => Found::new(
            Certainty::Likely,
            "by elimination: seven rules compared both windows and none stands out",
            n,
            0.0,
        )
        .says(match inter_token(earlier, case.now) {
            Some(gaps) => gaps.sentence("inter-token"),
            None => "inter-token: too few answers of two tokens".into(),
        }),
        _ => Found::new(
            Certainty::Possible,
            format!(
                "by elimination, and from little: an earlier window of {FEWEST} requests or more would show whether a figure moved"
            ),
            n,
            0.0,
        ),
    };
    let ends = case
        .now
        .answers
        .iter()
        .filter(|answer| answer.timeline.finish_reason().is_some_and(|r| r.name() == "length"));
    let ends = format!(
        "{} of {n} answers ended at their length, not by themselves: a template that is wrong often shows there",
        ends.count()
    );
    Ok(found.says(means(case, "prompt, mean:", |answer| answer.prompt, tokens)).says(ends))
}
