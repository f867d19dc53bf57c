//! What our own server says of a request: its TTFT in parts, when it made each token, and who it was.
//!
//! Reads what came over the network and trusts none of it: what is missing or no number is absent. Invariant: all times
//! count from `received`.

use serde::Serialize;
use serde_json::Value;

use firstlight_engine::clock::Nanos;

/// The longest duration that is believed, 13 days: the sum of as many as there can be requests fits into 64 bits.
const LONGEST: Nanos = 1 << 50;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// From the last byte of the request to the first text that was handed to the socket.
    pub ttft: Option<Nanos>,
    /// The parts in the order in which time passed, each the sum of its leaves.
    pub parts: Vec<(String, Nanos)>,
    /// What the server says that they sum to.
    pub parts_total: Option<Nanos>,
    /// They do, to the nanosecond.
    pub sums: bool,
    /// On the way to the server by a proxy's stamp: an estimate, since two clocks made it, and negative where they differ.
    pub upstream: Option<i64>,
    /// The path that the timeline names, with the replica's name before it.
    pub route: Option<String>,
    /// When each token was there.
    #[serde(skip)]
    pub made: Vec<Nanos>,
}

impl Account {
    /// From the JSON of a timeline; `None` for what is none.
    pub fn of(timeline: &Value) -> Option<Self> {
        let schema = timeline.get("schema")?.as_str()?;
        if !schema.starts_with("firstlight.timeline/") {
            return None;
        }
        let received = timeline["stamps"]["received"].as_u64()?;
        let since = |at: &Value| at.as_u64()?.checked_sub(received).filter(|ns| *ns <= LONGEST);
        let mut made: Vec<Nanos> = timeline["token_at"].as_array()?.iter().filter_map(since).collect();
        made.sort_unstable();
        let of_part = |(name, part): (&String, &Value)| Some((name.clone(), leaves(part)?));
        let parts: Option<Vec<_>> = timeline["parts"].as_object()?.iter().map(of_part).collect();
        let parts = parts?;
        let parts_total = timeline["parts_total"].as_u64();
        let sum = parts.iter().try_fold(0_u64, |sum, (_, part)| sum.checked_add(*part));
        let ttft = since(&timeline["stamps"]["first_write"]);
        Some(Self {
            sums: sum.is_some() && sum == parts_total && ttft.is_none_or(|ttft| Some(ttft) == sum),
            ttft,
            parts,
            parts_total,
            upstream: upstream(timeline),
            route: timeline["route"].as_str().map(str::to_owned),
            made,
        })
    }

    /// The replica that the route names: `a` of `a/v1/chat/completions`. A proxy may have taken the header that says so.
    pub fn replica(&self) -> Option<String> {
        let (name, _) = self.route.as_deref()?.split_once('/')?;
        (!name.is_empty()).then(|| name.to_owned())
    }
}

/// The sum of the leaves of a part; `None` where one is no duration or the sum is beyond all measure.
fn leaves(part: &Value) -> Option<Nanos> {
    match part {
        Value::Object(members) => {
            members.values().try_fold(0_u64, |sum, member| sum.checked_add(leaves(member)?))
        }
        leaf => leaf.as_u64().filter(|ns| *ns <= LONGEST),
    }
}

fn upstream(timeline: &Value) -> Option<i64> {
    timeline.get("upstream_estimate_ns")?.as_i64().filter(|ns| ns.unsigned_abs() <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn timeline() -> Value {
        json!({
            "schema": "firstlight.timeline/1",
            "route": "a/v1/chat/completions",
            "stamps": { "received": 100, "first_write": 160 },
            "parts": { "gateway": 10, "preparation": { "wait": 5, "template": 5 }, "prefill": { "compute": 40 } },
            "parts_total": 60,
            "token_at": [150, 170],
            "upstream_estimate_ns": -5,
        })
    }

    #[test]
    fn an_account_counts_from_received_and_says_whether_its_parts_sum() {
        let account = Account::of(&timeline()).unwrap();
        assert_eq!((account.ttft, account.made.as_slice(), account.sums), (Some(60), &[50, 70][..], true));
        assert_eq!(account.replica().as_deref(), Some("a"));
        assert_eq!(account.upstream, Some(-5), "two clocks may differ");
        let parts: Vec<(&str, Nanos)> =
            account.parts.iter().map(|(name, part)| (name.as_str(), *part)).collect();
        assert_eq!(parts, [("gateway", 10), ("preparation", 10), ("prefill", 40)]);
        let mut off = timeline();
        off["parts"]["gateway"] = json!(11);
        assert!(!Account::of(&off).unwrap().sums);
    }

    #[test]
    fn what_is_no_timeline_is_none() {
        let check = |timeline: &Value| assert_eq!(Account::of(timeline), None, "{timeline}");
        for what in [json!(null), json!([]), json!({ "schema": 1 }), json!({ "schema": "other/1" })] {
            check(&what);
        }
        for (field, value) in [
            ("stamps", json!({})),
            ("token_at", json!(1)),
            ("parts", json!({ "gateway": -1 })),
            ("parts", json!({ "gateway": u64::MAX })),
        ] {
            let mut what = timeline();
            what[field] = value;
            check(&what);
        }
    }
}
