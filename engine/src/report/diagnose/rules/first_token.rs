//! TTFT up, inter-token unchanged: which of its parts grew.
//!
//! The means of the parts sum to the mean of the whole by `==`, so that the growth of the whole is the sum of theirs: nothing is
//! fitted. Invariant: the part that is named has the largest growth of all.

use super::super::statistics::{coin_tail, trend};
use super::*;
use crate::timeline::WaitCauses;

/// The share of the first token's time that has to be waiting before one window alone says anything.
const WAITING: f64 = 0.5;

pub(in super::super) fn weigh(case: &Case) -> Weighed {
    let n = case.now.answers.len();
    if n < FEWEST {
        return too_little(n, "answered requests");
    }
    let compared = case.earlier.map(|earlier| (earlier, compare(case, earlier)));
    match compared {
        Some((_, Some(Ok(found)))) => Ok(found),
        Some((_, Some(Err(sentence)))) => {
            waiting(case).map_err(|(silence, waits)| (silence, format!("{sentence}; {waits}")))
        }
        Some((earlier, None)) => waiting(case).map_err(|(_, waits)| {
            let few = format!(
                "{} answered requests in the earlier window, and it takes {FEWEST}",
                earlier.answers.len()
            );
            (Silence::TooLittle, format!("{few}; {waits}"))
        }),
        None => waiting(case),
    }
}

/// A part of the first token's time.
type Part = (&'static str, fn(&Answer) -> Nanos);

const PARTS: [Part; 5] = [
    ("queue", |answer| answer.inbox + answer.queue),
    ("prefill", |answer| answer.prefill),
    ("evictions", |answer| answer.waste),
    ("host", |answer| answer.host),
    ("transport", |answer| answer.transport),
];

fn compare(case: &Case, earlier: &Facts) -> Option<Result<Found, String>> {
    let first = Compared::of(&earlier.each(|a| a.first), &case.now.each(|a| a.first))?;
    let sentence = first.sentence("TTFT");
    if !first.is_up() {
        return Some(Err(sentence));
    }
    let grown = PARTS.map(|(name, part)| (name, case.now.mean(part) - earlier.mean(part), part));
    let whole: f64 = grown.iter().map(|(_, growth, _)| growth).sum();
    let (name, growth, part) = grown.into_iter().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let of_whole = if whole > 0.0 { growth / whole } else { 0.0 };
    let share_of =
        format!("mean TTFT grew by {}, and {} of that is {name}", time(whole), percent(of_whole.min(1.0)));
    if name != "queue" && name != "prefill" {
        return Some(Err(format!("{sentence}; {share_of}, which is another rule's")));
    }
    let gaps = inter_token(earlier, case.now);
    let (certainty, reason) = match &gaps {
        Some(gaps) if gaps.is_up() => {
            (Certainty::Likely, "the part grew beyond chance; inter-token latency is up too")
        }
        Some(_) if of_whole < 0.5 => (Certainty::Likely, "beyond chance, but no part is half of the growth"),
        Some(_) => (
            Certainty::Certain,
            "beyond chance, most of the growth is one part, and inter-token latency is not up",
        ),
        None => (Certainty::Likely, "beyond chance; of inter-token latency too little is known"),
    };
    let found = Found::new(certainty, reason, first.ns[1], first.growth()).p(first.test.p_up);
    let found =
        found.says(sentence).says(share_of).says(means(case, &format!("{name}, mean:"), part, mean_time));
    let found = match gaps {
        Some(gaps) if gaps.is_up() => {
            found.says(gaps.sentence("inter-token")).seen_as("TTFT p95 up, inter-token up too")
        }
        Some(gaps) => found.says(gaps.sentence("inter-token")),
        None => found,
    };
    Some(Ok(if name == "queue" { queue(case, found) } else { prefill(case, earlier, found) }))
}

/// The largest cause of waiting, and what to do about it.
fn cause(waits: &WaitCauses) -> (&'static str, Nanos, &'static str) {
    let causes = [
        (
            "the batch was full",
            waits.slots,
            "over capacity: fewer requests, more --slots, or another replica",
        ),
        (
            "the step's tokens were spent",
            waits.budget,
            "over capacity: larger --batch-tokens, fewer requests, or another replica",
        ),
        (
            "no KV blocks were free",
            waits.blocks + waits.order,
            "over capacity of the KV cache: more --kv-memory, or shorter contexts",
        ),
        ("the device was being rebuilt", waits.paused, "why the device was lost (the server's log)"),
    ];
    causes.into_iter().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap_or_default()
}

fn queue(case: &Case, found: Found) -> Found {
    let (why, lasted, look_at) = cause(&case.now.waits);
    let all = case.now.waits.total();
    let depth = case.now.steps.iter().map(|step| step.waiting).max().unwrap_or(0);
    let found = found.says(format!(
        "of {} in the queue, {} because {why}; at most {depth} waited at once in {} steps",
        Lasted(all),
        percent(share(lasted, all)),
        case.now.steps.len(),
    ));
    found.at(Stage::Queue, look_at)
}

fn prefill(case: &Case, earlier: &Facts, found: Found) -> Found {
    let computed: fn(&Answer) -> Nanos = |answer| answer.prompt.saturating_sub(answer.cached);
    let of = |facts: &Facts, figure: fn(&Answer) -> Nanos| facts.mean(figure).max(1.0);
    let longer = of(case.now, |a| a.prompt) / of(earlier, |a| a.prompt);
    let hits = |facts: &Facts| facts.mean(|a| a.cached) / facts.mean(|a| a.prompt).max(1.0);
    let lost = hits(earlier) - hits(case.now);
    let more = of(case.now, computed) / of(earlier, computed);
    let look_at = if more < GROWTH {
        "prompts are no longer and hits no fewer, so computing them is slower: what shares their steps (`firstlight trace --beside`), and the device's clock (`firstlight doctor`)"
    } else if lost >= 0.1 && (1.0 - hits(case.now)) / (1.0 - hits(earlier)).max(0.01) >= longer {
        "lost prefix hits: what changes at the head of the prompts, and whether the KV cache has room to keep them"
    } else {
        "longer prompts: who sends them, and whether what they begin with can be the same for all (prefix cache)"
    };
    let found = found
        .says(means(case, "prompt, mean:", |a| a.prompt, tokens))
        .says(means(case, "of it found in the prefix cache:", |a| a.cached, tokens))
        .says(means(case, "computed:", computed, tokens));
    found.at(Stage::Prefill, look_at)
}

/// One window alone: waits that are most of the first token's time, and whether they grow.
fn waiting(case: &Case) -> Weighed {
    let answers = &case.now.answers;
    let n = answers.len();
    let waits = case.now.each(|answer| answer.inbox + answer.queue);
    let whole: Nanos = case.now.each(|answer| answer.first).iter().sum();
    let part = share(waits.iter().sum(), whole);
    let behind = answers.iter().filter(|answer| answer.queue > answer.prefill).count();
    let sentence = format!(
        "{} of the first tokens' time is waiting, n {n}; {behind} waited longer than their prefill took",
        percent(part)
    );
    if case.found.iter().any(|finding| finding.stage == Stage::Preemption)
        && cause(&case.now.waits).0 == "no KV blocks were free"
    {
        return quiet(format!("{sentence}; they wait for KV blocks, as preemption says"));
    }
    let p_behind = coin_tail(behind, n);
    let received = |answer: &Answer| answer.timeline.stamps().received().unwrap_or(0);
    let arrivals: Vec<(u64, u64)> =
        answers.iter().zip(&waits).map(|(answer, wait)| (received(answer), *wait)).collect();
    let span = arrivals.last().map_or(0, |last| last.0) - arrivals.first().map_or(0, |first| first.0);
    let prefill = case.now.mean(|answer| answer.prefill);
    let grows = trend(&arrivals).map(|trend| (trend, trend.slope * span as f64));
    let found = match grows {
        // The wait grows by more than a whole prefill from the first arrival to the last.
        Some((trend, growth)) if part >= WAITING && growth > prefill && trend.p_up < ALPHA_EACH => Found::new(
            Certainty::Certain,
            "waits are most of the first tokens' time, and grow with every arrival beyond chance: requests come faster than they are served",
            n,
            part,
        )
        .p(trend.p_up)
        .says(sentence)
        .says(format!("from the first arrival to the last, in {}, the wait grew by {} (median slope); a prefill takes {}", Lasted(span), time(growth), time(prefill))),
        _ if part >= WAITING && p_behind < ALPHA_EACH => Found::new(
            Certainty::Likely,
            "waits are most of the first tokens' time, but do not grow beyond chance: a burst, or more clients than slots",
            n,
            part,
        )
        .p(p_behind)
        .says(sentence),
        _ => return quiet(sentence),
    };
    Ok(queue(case, found))
}
