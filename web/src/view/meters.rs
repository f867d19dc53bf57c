//! Four timers and four gauges: a figure, what stands beside it, and how it went over the last minute.
//!
//! Timers are those of the report, gauges those of the last word. Invariant: what nobody measured is a dash, never 0.

use std::collections::VecDeque;

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::Distribution;
use firstlight_engine::timeline::{StepRecord, TimelineRecord};

use super::duration::{count, share, short};
use super::session::Session;

/// A minute.
const MINUTE: Nanos = 60_000_000_000;
/// Values of a curve: one a second.
pub const VALUES: usize = 60;

/// A timer or a gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    /// What it is called.
    pub name: &'static str,
    /// The figure.
    pub figure: String,
    /// What belongs beside it.
    pub note: String,
    /// The last minute, a value a second, 0 to 1 of the largest; a second in which nothing was measured has none.
    pub curve: Vec<Option<f64>>,
    /// What the largest value of the curve is, in words; empty without one.
    pub top: String,
}

/// The four timers: TTFT, ITL, TPOT, end to end.
pub fn timers(session: &Session) -> [Meter; 4] {
    let wholes = session.report.as_ref().map(|report| report.wholes).unwrap_or_default();
    // Answers that are not streamed have an engine TTFT only.
    let (ttft_name, ttft) = match (wholes.ttft, wholes.engine_ttft) {
        (None, Some(engine)) => ("engine TTFT p50", Some(engine)),
        (ttft, _) => ("TTFT p50", ttft),
    };
    [
        timer(ttft_name, ttft, ended(session, |one| one.ttft.or(one.engine_ttft))),
        timer("ITL p50", wholes.inter_token, gaps(session)),
        timer("TPOT p50", wholes.time_per_output_token, ended(session, time_per_output_token)),
        timer("end to end p50", wholes.e2e, ended(session, |one| one.e2e)),
    ]
}

/// The four gauges: KV cache, queue, batch, preemptions.
pub fn gauges(session: &Session) -> [Meter; 4] {
    let g = &session.gauges;
    let over = |value: fn(&StepRecord) -> f64| by_second(&session.steps, session.now, value, f64::max);
    let (used, total) = (u64::from(g.blocks_used), u64::from(g.blocks_total));
    let kv = if total == 0 { "–".to_owned() } else { share(used as f64, total as f64) };
    let kv_note =
        if total == 0 { String::new() } else { format!("{} of {} blocks", count(used), count(total)) };
    let largest = |value: f64| count(value as u64);
    let evictions = by_second(&session.steps, session.now, |s| s.preempted.len() as f64, |a, b| a + b);
    [
        meter(
            "KV cache",
            kv,
            kv_note,
            over(|s| f64::from(s.blocks_used) / f64::from(s.blocks_total.max(1))),
            |top| share(top, 1.0),
        ),
        meter(
            "queue",
            count(u64::from(g.waiting)),
            "waiting".into(),
            over(|s| f64::from(s.waiting)),
            largest,
        ),
        meter(
            "batch",
            count(u64::from(g.running)),
            "running".into(),
            over(|s| f64::from(s.running)),
            largest,
        ),
        meter("preemptions", count(g.preemptions_total), "so far".into(), evictions, largest),
    ]
}

fn timer(name: &'static str, of: Option<Distribution>, samples: Vec<(Nanos, Nanos)>) -> Meter {
    let figure = of.map_or("–".to_owned(), |of| short(of.p50));
    let note = of
        .map_or("no sample yet".to_owned(), |of| format!("p95 {} · n {}", short(of.p95), count(of.n as u64)));
    let newest = samples.iter().map(|(at, _)| *at).max().unwrap_or(0);
    let mut seconds: Vec<Option<f64>> = vec![None; VALUES];
    for (at, value) in samples {
        if let Some(second) = second_of(at, newest) {
            let value = value as f64;
            seconds[second] = Some(seconds[second].map_or(value, |one| one.max(value)));
        }
    }
    meter(name, figure, note, seconds, |top| short(top as Nanos))
}

fn meter(
    name: &'static str,
    figure: String,
    note: String,
    values: Vec<Option<f64>>,
    words: impl Fn(f64) -> String,
) -> Meter {
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    let curve = values.into_iter().map(|value| value.map(|value| if top > 0.0 { value / top } else { 0.0 }));
    let any = top > 0.0;
    Meter { name, figure, note, curve: curve.collect(), top: if any { words(top) } else { String::new() } }
}

/// Which of the last sixty seconds before `now` an instant lies in; the last is 59.
fn second_of(at: Nanos, now: Nanos) -> Option<usize> {
    let ago = now.checked_sub(at).filter(|ago| *ago < MINUTE)?;
    Some(VALUES - 1 - (ago / (MINUTE / VALUES as u64)) as usize)
}

/// Steps by second; a second without a step held nothing.
fn by_second(
    steps: &VecDeque<StepRecord>,
    now: Nanos,
    value: impl Fn(&StepRecord) -> f64,
    together: impl Fn(f64, f64) -> f64,
) -> Vec<Option<f64>> {
    let mut seconds = vec![Some(0.0); VALUES];
    let first = steps.partition_point(|step| step.done_at.saturating_add(MINUTE) < now);
    for step in steps.range(first..) {
        if let Some(second) = second_of(step.done_at.min(now), now) {
            seconds[second] = seconds[second].map(|before| together(before, value(step)));
        }
    }
    seconds
}

fn ended(session: &Session, value: fn(&TimelineRecord) -> Option<Nanos>) -> Vec<(Nanos, Nanos)> {
    let last_minute = recent(session);
    last_minute.filter_map(|one| Some((one.stamps.finished?, value(one)?))).collect()
}

/// Sealed timelines that ended in the last minute, and those that live have their gaps too.
fn recent(session: &Session) -> impl Iterator<Item = &TimelineRecord> {
    let since = session.now.saturating_sub(MINUTE);
    session.sealed.iter().rev().take_while(move |one| one.stamps.finished.is_some_and(|at| at >= since))
}

fn gaps(session: &Session) -> Vec<(Nanos, Nanos)> {
    let since = session.now.saturating_sub(MINUTE);
    let all = recent(session).chain(session.live.values());
    all.flat_map(|one| {
        let first = one.token_at.partition_point(|at| *at < since);
        one.token_at[first..].windows(2).map(|pair| (pair[1], pair[1].saturating_sub(pair[0])))
    })
    .collect()
}

fn time_per_output_token(record: &TimelineRecord) -> Option<Nanos> {
    record.decode?.total().checked_div(u64::from(record.tokens.generated).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures;

    #[test]
    fn a_session_without_a_request_has_dashes_and_no_zeros_for_times() {
        let session = Session::default();
        for meter in timers(&session) {
            assert_eq!((meter.figure.as_str(), meter.top.as_str()), ("–", ""), "{}", meter.name);
            assert!(meter.curve.iter().all(Option::is_none));
        }
        assert_eq!(gauges(&session)[0].figure, "–");
        assert_eq!(gauges(&session)[1].figure, "0");
    }

    #[test]
    fn curves_have_a_value_a_second_between_0_and_1() {
        let mut session = Session::default();
        for story in fixtures::stories() {
            session.now = session.now.max(story.now);
            session.steps = story.steps;
            if story.record.finish_reason.is_some() {
                session.sealed.push_back(story.record);
            }
        }
        for meter in timers(&session).into_iter().chain(gauges(&session)) {
            assert_eq!(meter.curve.len(), VALUES, "{}", meter.name);
            assert!(meter.curve.iter().flatten().all(|value| (0.0..=1.0).contains(value)), "{}", meter.name);
            assert!(meter.curve.contains(&Some(1.0)), "{}", meter.name);
        }
    }
}
