//! From a symptom to the stage to look at: a window of finished requests, and an earlier one to compare it with if there is
//! one, against a table of eight rules.
//!
//! It measures nothing and prints nothing: timelines and steps in, a [`Diagnosis`] out, whose sentences carry their figures.
//! Two kinds of evidence. Counts and shares are exact, because parts sum to wholes by `==`; whether they are more than chance
//! is a matter of tests, and these together accuse a healthy pair of windows once in [`FALSE_ALARMS`] at most: each test takes
//! its share of that (Bonferroni), and an effect has to be large too, so that many requests do not make a trifle a finding.
//! Requests in a queue depend on each other, which the tests allow for: by simulation the promise holds for servers that are used
//! to half of what they can; of those used to 70 % one window in 30 is accused, of waits that it does have.
//! Invariant: a rule that finds nothing says what it looked at, and one that has too little says how much it needs.

mod conditions;
mod dip;
mod facts;
mod rules;
pub mod statistics;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use self::facts::Facts;
use super::{ReportContext, ReportWindow};
use crate::clock::Nanos;
use crate::timeline::StepRing;

pub use conditions::Conditions;
pub use rules::{RULES, Rule};

/// The chance that a diagnosis finds anything where nothing is wrong, at most, as far as chance is concerned.
pub const FALSE_ALARMS: f64 = 0.01;
/// Tests that a diagnosis may do: those that stand in `rules`, and one more.
pub const MAX_TESTS: u32 = 12;
/// What each of them may take of it.
pub const ALPHA_EACH: f64 = FALSE_ALARMS / MAX_TESTS as f64;
/// Requests below which no test says anything: twelve heads in a row are just rarer than [`ALPHA_EACH`].
pub const FEWEST: usize = 12;

/// Where time, or an answer's sense, is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a place in the batch.
    Queue,
    /// Computing prompts.
    Prefill,
    /// Finding what was computed before.
    PrefixCache,
    /// The tokens after the first.
    Decode,
    /// The process around the GPU.
    Host,
    /// Room for keys and values: who runs is evicted.
    Preemption,
    /// The prompt of one client.
    ClientPrefill,
    /// How a conversation becomes a prompt.
    ChatTemplate,
    /// From the text to the client.
    Transport,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It fits, and other things would fit too.
    Possible,
    /// More than chance, and one thing that would confirm it is missing.
    Likely,
    /// Counted, or far beyond chance, and nothing speaks against it.
    Certain,
}

/// A stage to look at, and why.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: Cow<'static, str>,
    /// What was seen.
    pub symptom: Cow<'static, str>,
    /// Where it comes from.
    pub stage: Stage,
    /// How sure that is.
    pub certainty: Certainty,
    /// Why it is so sure and no surer.
    pub reason: String,
    /// Requests (steps, for rules about steps) that it rests on; of the earlier window too where it was compared.
    pub n: usize,
    /// By chance alone it would be seen so often at most; absent where it was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// How large it is: the first figure of the evidence, as a share or as a ratio.
    pub effect: f64,
    /// Sentences with figures.
    pub evidence: Vec<String>,
    /// What to look at next.
    pub look_at: String,
}

/// Why a rule found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Silence {
    /// It looked, and nothing stands out.
    Nothing,
    /// There is too little to look at.
    TooLittle,
    /// What it needs was not asked for.
    NotAsked,
}

/// A rule that found nothing.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Checked {
    /// The rule's name.
    pub rule: Cow<'static, str>,
    /// What it would have found.
    pub symptom: Cow<'static, str>,
    /// Why it is silent.
    pub outcome: Silence,
    /// What it looked at, with figures, or what it needs.
    pub sentence: String,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Diagnosis {
    /// [`Diagnosis::SCHEMA`].
    pub schema: Cow<'static, str>,
    /// Under which conditions the figures hold.
    pub conditions: Conditions,
    /// Those of the earlier window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Conditions>,
    /// The chance of any finding where nothing is wrong, at most.
    pub false_alarms: f64,
    /// What stands out, the surest first.
    pub findings: Vec<Finding>,
    /// What does not.
    pub checked: Vec<Checked>,
}

/// A window of finished requests, the steps that served it, and under which conditions.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'w> {
    /// The requests.
    pub window: &'w ReportWindow,
    /// The steps, those of others included.
    pub steps: &'w StepRing,
    /// Under which conditions.
    pub conditions: &'w Conditions,
}

/// What clients saw of a few answers, measured beside the server's own account of them; `firstlight probe` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSide {
    /// Answers.
    pub answers: usize,
    /// Those whose text came in lumps, although it was made over a time.
    pub buffered: usize,
    /// The median time to the first text at the client.
    pub ttft: Nanos,
    /// The same of the same answers at the server.
    pub server_ttft: Nanos,
    /// The median time to a connection: what the network alone takes.
    pub connect: Nanos,
    /// Tokens that had been made when the first text of the latest answer arrived.
    pub made_before_first: usize,
}

/// What is asked beside the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Somebody says that the answers are worse.
    pub worse_answers: bool,
    /// What clients saw.
    pub client: Option<ClientSide>,
}

/// What the rules look at.
struct Case<'c> {
    now: &'c Facts<'c>,
    earlier: Option<&'c Facts<'c>>,
    asked: Asked,
    /// By the rules before.
    found: &'c [Finding],
}

impl Diagnosis {
    /// The schema's name.
    pub const SCHEMA: &'static str = "firstlight.diagnosis/1";

    /// Weighs every rule on `now`, and on how it differs from `earlier` if that is given.
    pub fn of(now: Observed, earlier: Option<Observed>, asked: Asked) -> Self {
        let mut findings: Vec<Finding> = Vec::new();
        let mut checked = Vec::new();
        let (facts, facts_earlier) = (Facts::of(now), earlier.map(Facts::of));
        for rule in &RULES {
            let case = Case { now: &facts, earlier: facts_earlier.as_ref(), asked, found: &findings };
            let symptom = if earlier.is_some() { rule.symptom } else { rule.alone };
            match (rule.weigh)(&case) {
                Ok(found) => findings.push(found.by(rule, symptom)),
                Err((outcome, sentence)) => checked.push(Checked {
                    rule: rule.name.into(),
                    symptom: symptom.into(),
                    outcome,
                    sentence,
                }),
            }
        }
        crate::order::sort_by_number(&mut findings, |finding| match finding.certainty {
            Certainty::Certain => 0,
            Certainty::Likely => 1,
            Certainty::Possible => 2,
        });
        Self {
            schema: Self::SCHEMA.into(),
            conditions: now.conditions.of_window(now.window),
            earlier: earlier.map(|earlier| earlier.conditions.of_window(earlier.window)),
            false_alarms: FALSE_ALARMS,
            findings,
            checked,
        }
    }

    /// The whole in one sentence.
    pub fn summary(&self) -> String {
        let stages = |finding: &Finding| {
            let stage = finding.stage.name();
            format!("{stage} ({})", finding.certainty.name())
        };
        match self.findings.as_slice() {
            [] if self.conditions.n_answered < FEWEST => format!(
                "too little to tell: {} answered requests, and {FEWEST} are the fewest that a test says anything of",
                self.conditions.n_answered
            ),
            [] => "nothing stands out".into(),
            found => format!("look at: {}", found.iter().map(stages).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl Stage {
    /// Its name for a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::PrefixCache => "prefix cache",
            Self::Decode => "decode",
            Self::Host => "host",
            Self::Preemption => "preemption",
            Self::ClientPrefill => "one client's prefill",
            Self::ChatTemplate => "chat template",
            Self::Transport => "transport",
        }
    }
}

impl Certainty {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}
