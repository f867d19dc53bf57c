//! The process around the GPU, and evictions: both are counted, so that chance has little to say.
//!
//! Invariant: the host is named only where the device was idle while requests were under way.

use super::super::statistics::coin_tail;
use super::*;

/// The share of the time under way in which no step ran, from which on the device counts as not busy.
const IDLE: f64 = 0.3;
/// The host's share of a first token's time, from which on it is a large one.
const HOST: f64 = 0.3;
/// What evictions have to cost of all requests' time, or the share of requests that they have to hit.
const EVICTED: f64 = 0.05;

pub(in super::super) fn preemption(case: &Case) -> Weighed {
    let costs = |facts: &Facts| share(facts.evicted, facts.e2e);
    let now = case.now;
    let words = |facts: &Facts| {
        format!(
            "{} of {} requests evicted, {} times, which cost {} of their time",
            facts.preempted,
            facts.n,
            facts.preemptions,
            percent(costs(facts))
        )
    };
    let sentence = match case.earlier {
        Some(earlier) => format!("{} (earlier {})", words(now), words(earlier)),
        None => words(now),
    };
    let hit = now.preempted as f64 / now.n.max(1) as f64;
    if now.preempted == 0 || (costs(now) < EVICTED && hit < EVICTED) {
        return quiet(sentence);
    }
    let certainty = if costs(now) >= 2.0 * EVICTED { Certainty::Certain } else { Certainty::Likely };
    let reason = match certainty {
        Certainty::Certain => "counted and timed, nothing is inferred",
        _ => "counted; what they cost is little, or hits a few requests hard",
    };
    let used = now
        .steps
        .iter()
        .map(|step| share(step.blocks_used.into(), step.blocks_total.into()))
        .fold(0.0, f64::max);
    let blocks = now.steps.first().map_or(0, |step| step.blocks_total);
    let found = Found::new(certainty, reason, now.n, costs(now)).says(sentence);
    let found = found.says(format!("the KV cache was full to {} of its {blocks} blocks", percent(used)));
    Ok(match case.earlier {
        None => found,
        Some(earlier) => {
            let e2e = |facts: &Facts| some_time(percentile(50, &facts.each(|answer| answer.e2e)));
            found.says(format!(
                "{:.1} tokens a second (earlier {:.1}), and a whole answer took {} (earlier {}), p50",
                now.tokens_per_s,
                earlier.tokens_per_s,
                e2e(now),
                e2e(earlier)
            ))
        }
    })
}

pub(in super::super) fn weigh(case: &Case) -> Weighed {
    let now = case.now;
    let n = now.answers.len();
    if n < FEWEST {
        return too_little(n, "answered requests");
    }
    if now.under_way == 0 {
        return Err((Silence::TooLittle, "no steps are told; give them beside the timelines".into()));
    }
    let idle = |facts: &Facts| 1.0 - share(facts.busy, facts.under_way).min(1.0);
    let part =
        |facts: &Facts| share(facts.each(|a| a.host).iter().sum(), facts.each(|a| a.first).iter().sum());
    let between = share(now.between_steps, now.between_steps + now.busy);
    let before = |figure: &dyn Fn(&Facts) -> f64| {
        case.earlier.map(|earlier| format!(" (earlier {})", percent(figure(earlier)))).unwrap_or_default()
    };
    let sentence = format!(
        "for {}{} of {} with requests under way no step ran; host parts are {}{} of the first tokens' time, n {n}; {} of the batch's time is between steps",
        percent(idle(now)),
        before(&idle),
        Lasted(now.under_way),
        percent(part(now)),
        before(&part),
        percent(between),
    );
    let slow = now.answers.iter().filter(|a| a.host as f64 >= HOST * a.first as f64).count();
    let p_value = coin_tail(slow, n);
    if idle(now) < IDLE {
        return quiet(sentence);
    }
    let preparation = now.preparation;
    let parts = [
        ("gateway: authentication, quotas, reading bodies", now.gateway),
        ("route", now.route),
        ("preparation workers: prompts wait for one", preparation.wait),
        ("the chat template", preparation.template),
        ("tokenising: long texts", preparation.tokenise),
        ("handing on to the engine", preparation.submit),
    ];
    let largest = parts.into_iter().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap_or_default();
    if part(now) >= HOST && p_value < ALPHA_EACH {
        let total: Nanos = parts.iter().map(|(_, lasted)| lasted).sum();
        let found = Found::new(
            Certainty::Certain,
            "counted: the device was idle while most requests were still with the host",
            n,
            part(now),
        );
        let found = found
            .p(p_value)
            .says(sentence)
            .says(format!("{slow} of {n} first tokens spent {} or more with the host", percent(HOST)));
        let found = found.says(format!(
            "of {} with the host, {} is {}",
            Lasted(total),
            percent(share(largest.1, total)),
            largest.0
        ));
        return Ok(found.at(Stage::Host, format!("the process, not the GPU; {}", largest.0)));
    }
    if between >= IDLE && now.steps.len() >= FEWEST {
        let found = Found::new(
            Certainty::Likely,
            "counted: the device was idle between the steps of answers that went on",
            now.steps.len(),
            between,
        );
        return Ok(found.says(sentence).at(Stage::Host, "the process, not the GPU: what the engine's thread does between steps, and who else uses its cores"));
    }
    quiet(sentence)
}
