//! Which of several choices of kernels is the quickest on an adapter, decided by their times, and what is kept of that.
//!
//! Never measures, and keeps nothing itself: a host hands in times and stores bytes. Invariant: what was kept holds for the
//! adapter, driver, engine and shapes that it was measured with, and for nothing else.

use firstlight_shaders::Activations;
use serde_json::{Value, json};

use super::{AdapterFacts, KernelChoice};

/// Nanoseconds of the steps by which choices are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialTimes {
    /// One token of one sequence.
    pub decode_ns: u64,
    /// One token of each of eight sequences.
    pub batch_ns: u64,
    /// A prompt of 64 tokens.
    pub prefill_ns: u64,
}

impl TrialTimes {
    /// The lesser of each time.
    pub fn least(self, other: Self) -> Self {
        Self {
            decode_ns: self.decode_ns.min(other.decode_ns),
            batch_ns: self.batch_ns.min(other.batch_ns),
            prefill_ns: self.prefill_ns.min(other.prefill_ns),
        }
    }

    /// What a request costs: 64 tokens of prompt and 32 of answer, half of these alone and half beside seven others.
    pub fn cost_ns(self) -> u64 {
        self.prefill_ns + 16 * (self.decode_ns + self.batch_ns)
    }
}

/// A choice that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Which.
    pub choice: KernelChoice,
    /// Its times, or why it has none.
    pub times: Result<TrialTimes, String>,
}

/// What a measurement holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuneKey(String);

impl TuneKey {
    /// For an adapter and a model whose products are `shapes` (any text that tells models apart).
    pub fn new(facts: &AdapterFacts, shapes: &str, activations: Activations) -> Self {
        // Not the adapter's place in a list, which another adapter changes.
        Self(format!(
            "{}|{}|{}|{}|{}-{}|{}|{}|{}|{shapes}|{}",
            env!("CARGO_PKG_VERSION"),
            facts.name,
            facts.driver,
            facts.backend,
            facts.subgroup_min_size,
            facts.subgroup_max_size,
            facts.subgroups,
            facts.f16,
            facts.max_binding_bytes,
            activations.name()
        ))
    }

    /// The key as text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// A name for `what` is kept: lower-case letters, digits and dashes.
    pub fn file_name(&self, what: &str) -> String {
        // FNV-1a; a clash only costs a new trial, because the whole key lies in the file.
        let hash = self.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{what}-{hash:016x}.json")
    }
}

/// The choice that won, with what it won by.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// What it holds for.
    pub key: TuneKey,
    /// The winner.
    pub choice: KernelChoice,
    /// All that were tried.
    pub trials: Vec<Trial>,
}

/// A choice has to be so much quicker than the one before it in the list: what differs by less is the same, and shall not
/// change from one measurement to the next.
const MARGIN: f64 = 0.95;

const SCHEMA: &str = "firstlight.kernels/1";

impl Tuned {
    /// The quickest of `trials`, an earlier one where they differ by less than the machine does. `None` where all failed.
    pub fn of(key: TuneKey, trials: Vec<Trial>) -> Option<Self> {
        let mut best: Option<(KernelChoice, u64)> = None;
        for trial in &trials {
            let Ok(times) = trial.times else { continue };
            let cost = times.cost_ns();
            if best.is_none_or(|(_, least)| (cost as f64) < least as f64 * MARGIN) {
                best = Some((trial.choice, cost));
            }
        }
        best.map(|(choice, _)| Self { key, choice, trials })
    }

    /// What a host keeps.
    pub fn to_json(&self) -> String {
        let trial = |trial: &Trial| match &trial.times {
            Ok(times) => json!({
                "choice": trial.choice.to_json(),
                "decode_ns": times.decode_ns, "batch_ns": times.batch_ns, "prefill_ns": times.prefill_ns,
            }),
            Err(reason) => json!({ "choice": trial.choice.to_json(), "failed": reason }),
        };
        json!({
            "schema": SCHEMA,
            "key": self.key.text(),
            "choice": self.choice.to_json(),
            "trials": self.trials.iter().map(trial).collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// What was kept, if it is whole and was measured for `key`; else it is to be measured anew.
    pub fn recall(json: &[u8], key: &TuneKey, facts: &AdapterFacts) -> Option<Self> {
        let value: Value = serde_json::from_slice(json).ok()?;
        if value.get("schema")?.as_str()? != SCHEMA || value.get("key")?.as_str()? != key.text() {
            return None;
        }
        let choice = |value: &Value| KernelChoice::for_adapter(facts).with(value.get("choice")?, facts).ok();
        let trial = |value: &Value| {
            let ns = |name: &str| value.get(name)?.as_u64();
            let times = match value.get("failed") {
                Some(reason) => Err(reason.as_str()?.to_owned()),
                None => Ok(TrialTimes {
                    decode_ns: ns("decode_ns")?,
                    batch_ns: ns("batch_ns")?,
                    prefill_ns: ns("prefill_ns")?,
                }),
            };
            Some(Trial { choice: choice(value)?, times })
        };
        let trials: Option<Vec<Trial>> = value.get("trials")?.as_array()?.iter().map(trial).collect();
        Some(Self { key: key.clone(), choice: choice(&value)?, trials: trials? })
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        match &self.times {
            Ok(times) => write!(
                f,
                "decode {:.3} ms, eight together {:.3} ms, prefill of 64 {:.3} ms: {}",
                ms(times.decode_ns),
                ms(times.batch_ns),
                ms(times.prefill_ns),
                self.choice
            ),
            Err(reason) => write!(f, "failed ({reason}): {}", self.choice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::pin::tests::facts;

    fn key() -> TuneKey {
        TuneKey::new(&facts(true, 8), "576x1536", Activations::F32)
    }

    /// The place in the list of candidates that wins with these costs of one decode step; 0 failed.
    fn check(decode_ns: &[u64], expected: Option<usize>) {
        let candidates = KernelChoice::candidates(&facts(true, 8));
        let trial = |(choice, &decode_ns): (&KernelChoice, &u64)| Trial {
            choice: *choice,
            times: match decode_ns {
                0 => Err("it does not compile".into()),
                _ => Ok(TrialTimes { decode_ns, ..TrialTimes::default() }),
            },
        };
        let tuned = Tuned::of(key(), candidates.iter().zip(decode_ns).map(trial).collect());
        let winner = tuned.map(|tuned| tuned.choice);
        assert_eq!(winner, expected.map(|idx| candidates[idx]), "{decode_ns:?}");
    }

    #[test]
    fn a_slow_choice_is_not_chosen_and_a_tie_keeps_the_first() {
        check(&[100, 200, 300], Some(0));
        check(&[200, 100, 300], Some(1));
        check(&[300, 200, 100], Some(2));
        check(&[100, 96, 99], Some(0));
        check(&[100, 94, 93], Some(1));
        check(&[0, 200, 300], Some(1));
        check(&[0, 0, 0], None);
        check(&[], None);
    }

    #[test]
    fn of_several_rounds_the_least_of_each_time_counts() {
        let round = |decode_ns, batch_ns, prefill_ns| TrialTimes { decode_ns, batch_ns, prefill_ns };
        assert_eq!(round(5, 20, 30).least(round(6, 10, 40)), round(5, 10, 30));
        assert_eq!(round(5, 10, 30).cost_ns(), 30 + 16 * 15);
    }

    fn tuned() -> Tuned {
        let candidates = KernelChoice::candidates(&facts(true, 8));
        let times = TrialTimes { decode_ns: 3, batch_ns: 5, prefill_ns: 7 };
        let trials = vec![
            Trial { choice: candidates[0], times: Err("no \"room\"".into()) },
            Trial { choice: candidates[1], times: Ok(times) },
        ];
        Tuned::of(key(), trials).expect("one of them ran")
    }

    #[test]
    fn what_was_kept_is_recalled_for_its_key_alone() {
        let (tuned, lavapipe) = (tuned(), facts(true, 8));
        let text = tuned.to_json();
        assert_eq!(Tuned::recall(text.as_bytes(), &key(), &lavapipe), Some(tuned.clone()));
        let others = [
            TuneKey::new(&lavapipe, "576x1536", Activations::I8),
            TuneKey::new(&lavapipe, "2048x8192", Activations::F32),
            TuneKey::new(
                &AdapterFacts { driver: "a driver 2".into(), ..lavapipe.clone() },
                "576x1536",
                Activations::F32,
            ),
            TuneKey::new(
                &AdapterFacts { name: "another".into(), ..lavapipe.clone() },
                "576x1536",
                Activations::F32,
            ),
        ];
        for other in others {
            assert_ne!(other.file_name("kernels"), key().file_name("kernels"), "{other:?}");
            assert_eq!(Tuned::recall(text.as_bytes(), &other, &lavapipe), None, "{other:?}");
        }
        let moved = AdapterFacts { index: 3, ..lavapipe };
        assert_eq!(TuneKey::new(&moved, "576x1536", Activations::F32), key());
    }

    #[test]
    fn what_is_damaged_is_measured_anew() {
        let text = tuned().to_json();
        let damaged = [
            String::new(),
            "null".into(),
            text[..text.len() / 2].to_owned(),
            text.replace("kernels/1", "kernels/2"),
            text.replace("lanes", "planes"),
            text.replace("decode_ns", "decode"),
            text.replace("\"trials\":[", "\"trials\":[4,"),
            text.replace("\"choice\"", "\"kernels\""),
        ];
        for text in damaged {
            assert_eq!(Tuned::recall(text.as_bytes(), &key(), &facts(true, 8)), None, "{text}");
        }
        // One whose kernels the adapter has no longer.
        let text = tuned().to_json();
        assert_eq!(Tuned::recall(text.as_bytes(), &key(), &facts(true, 4)), None, "{text}");
    }
}
