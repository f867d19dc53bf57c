//! Requests that differ from each other: prompts that are much longer than the rest, and first tokens of two kinds.
//!
//! Invariant: two kinds of first tokens are the prefix cache's only where hits tell them apart and lengths do not.

use super::super::dip;
use super::*;
use crate::order::sort_by_number;

/// A prompt is long that is so many times the median.
const LONG: u64 = 4;
/// And has so many tokens: no prefill of fewer is seen.
const LONG_TOKENS: u64 = 64;
/// And is one of at most so many in a hundred.
const FEW: usize = 25;
/// How much slower those have to be, and how far apart two kinds.
const SLOWER: f64 = 3.0;
const APART: f64 = 1.5;
/// By how much the share of found tokens differs between two kinds of first tokens.
const HITS_DIFFER: f64 = 0.25;
/// Requests that are named.
const NAMED: usize = 3;

fn median(answers: &[&Answer], figure: fn(&Answer) -> Nanos) -> Nanos {
    percentile(50, &answers.iter().map(|answer| figure(answer)).collect::<Vec<u64>>()).unwrap_or(0)
}

pub(in super::super) fn one_client(case: &Case) -> Weighed {
    let n = case.now.answers.len();
    if n < FEWEST {
        return too_little(n, "answered requests");
    }
    let usual = percentile(50, &case.now.each(|a| a.prompt)).unwrap_or(0);
    let is_long = |answer: &&Answer| answer.prompt >= LONG_TOKENS.max(LONG * usual);
    let (long, rest): (Vec<&Answer>, Vec<&Answer>) = case.now.answers.iter().partition(is_long);
    let (slow, fine) = (median(&long, |a| a.first), median(&rest, |a| a.first));
    let ratio = slow as f64 / fine.max(1) as f64;
    let sentence =
        format!("{} of {n} prompts have {LONG} times the median of {usual} tokens, or more", long.len());
    let in_prefill = share(long.iter().map(|a| a.prefill).sum(), long.iter().map(|a| a.first).sum());
    if long.is_empty() || long.len() * 100 > FEW * n || ratio < SLOWER || in_prefill < 0.5 {
        return quiet(sentence);
    }
    let firsts = |answers: &[&Answer]| answers.iter().map(|a| a.first).collect::<Vec<u64>>();
    let p_value = mann_whitney(&firsts(&rest), &firsts(&long)).map_or(1.0, |test| test.p_up);
    let (certainty, reason) = match p_value < ALPHA_EACH {
        true => (
            Certainty::Certain,
            "their first tokens are later than all others' beyond chance, and that time is prefill",
        ),
        false => (
            Certainty::Likely,
            "that their time is prefill is counted; they are so few that chance may have put them there",
        ),
    };
    let names = long
        .iter()
        .take(NAMED)
        .map(|a| crate::report::latency::host_id(a.timeline))
        .collect::<Vec<_>>()
        .join(", ");
    let mut ids: Vec<u64> = long.iter().map(|a| a.timeline.id().0).collect();
    ids.dedup();
    let theirs = |id: &u64| ids.contains(id);
    let shared =
        case.now.steps.iter().filter(|s| s.decode_rows > 0 && s.prefill.iter().any(|(id, _)| theirs(&id.0)));
    let (count, lasted) =
        shared.fold((0, 0), |(count, lasted), s| (count + 1, lasted + (s.done_at - s.schedule_at)));
    let found = Found::new(certainty, reason, n, ratio).p(p_value).says(sentence);
    Ok(found
        .says(format!("theirs: {} tokens and a TTFT of {}, p50, n {} ({} of it prefill); the others': {} tokens and {}, n {}", median(&long, |a| a.prompt), Lasted(slow), long.len(), percent(in_prefill), median(&rest, |a| a.prompt), Lasted(fine), rest.len()))
        .says(format!("others' answers went on in {count} steps with chunks of these prompts, for {}", Lasted(lasted)))
        .says(format!("among them: {names}")))
}

pub(in super::super) fn bimodal(case: &Case) -> Weighed {
    let n = case.now.answers.len();
    if n < FEWEST {
        return too_little(n, "answered requests");
    }
    let own: fn(&Answer) -> Nanos = |answer| answer.first - answer.inbox - answer.queue - answer.waste;
    let mut sorted: Vec<&Answer> = case.now.answers.iter().collect();
    sort_by_number(&mut sorted, |answer| own(answer));
    // Of logarithms: latencies spread by a factor, so that the slower of two kinds would hide in its own width.
    let values: Vec<f64> = sorted.iter().map(|answer| (own(answer).max(1) as f64).ln()).collect();
    let dip = dip::dip(&values);
    let sentence = format!("TTFT without its waits has a dip of {dip:.3} on a logarithmic scale, n {n}");
    if !dip::is_significant(dip, n) {
        return quiet(format!("{sentence}: one kind, as far as chance tells"));
    }
    let (fast, slow) = sorted.split_at(two_kinds(&values));
    let apart = median(slow, own) as f64 / median(fast, own).max(1) as f64;
    let hits = |answers: &[&Answer]| {
        share(answers.iter().map(|a| a.cached).sum(), answers.iter().map(|a| a.prompt).sum())
    };
    let lengths = median(slow, |a| a.prompt) as f64 / median(fast, |a| a.prompt).max(1) as f64;
    let kinds = format!(
        "{} take {} with {} of their {} tokens found in the prefix cache, and {} take {} with {} of {} found, p50",
        fast.len(),
        Lasted(median(fast, own)),
        percent(hits(fast)),
        median(fast, |a| a.prompt),
        slow.len(),
        Lasted(median(slow, own)),
        percent(hits(slow)),
        median(slow, |a| a.prompt),
    );
    let differ = hits(fast) - hits(slow);
    if apart < APART || differ < HITS_DIFFER {
        let why = match lengths >= APART {
            true => "lengths tell them apart, not the prefix cache",
            false => "neither hits nor lengths tell them apart",
        };
        return quiet(format!("{sentence}: two kinds, but {why}: {kinds}"));
    }
    let (certainty, reason) = match lengths < APART {
        true => (Certainty::Certain, "two kinds beyond chance (Hartigan's dip), and hits tell them apart"),
        false => (
            Certainty::Likely,
            "two kinds beyond chance (Hartigan's dip); hits tell them apart, and lengths do too",
        ),
    };
    let found = Found::new(certainty, reason, n, apart).p(ALPHA_EACH).says(sentence);
    Ok(found.says(kinds).says(means(case, "found in the prefix cache, mean:", |a| a.cached, tokens)))
}

/// Where to cut sorted values in two, so that those within each part are closest to their mean (Otsu 1979).
fn two_kinds(logs: &[f64]) -> usize {
    let whole: f64 = logs.iter().sum();
    let (mut below, mut best) = (0.0, (0.0, 1));
    for cut in 1..logs.len() {
        below += logs[cut - 1];
        let (n, m) = (cut as f64, (logs.len() - cut) as f64);
        let between = n * m * ((whole - below) / m - below / n).powi(2);
        if between > best.0 {
            best = (between, cut);
        }
    }
    best.1
}
