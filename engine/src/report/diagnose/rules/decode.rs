//! Inter-token latency: the batch, the position, or prompts of others in the same steps.
//!
//! With one window the steps of that window are held against each other: those with large batches against those with small
//! ones. Invariant: steps in which a prompt was computed say nothing of decode.

use super::super::facts::DecodeStep;
use super::super::statistics::{Trend, trend};
use super::*;

/// How much longer a step has to be at the large end of the batches than at the small one before one window says anything: the
/// arithmetic of a batch is free up to its ridge, and there it begins to cost.
const BATCH_COSTS: f64 = 2.0;
/// The same of positions.
const POSITION_COSTS: f64 = 1.5;

pub(in super::super) fn weigh(case: &Case) -> Weighed {
    let Some(earlier) = case.earlier else { return alone(case) };
    let Some(gaps) = inter_token(earlier, case.now) else {
        let n = earlier.own_gaps().len().min(case.now.own_gaps().len());
        return too_little(n, "answers of two tokens or more in one of the windows");
    };
    if !gaps.is_up() {
        return quiet(gaps.sentence("inter-token"));
    }
    let first = Compared::of(&earlier.each(|a| a.first), &case.now.each(|a| a.first));
    let (certainty, reason, symptom) = match first {
        Some(first) if !first.is_up() => {
            (Certainty::Certain, "beyond chance, and TTFT is not up", "inter-token up, TTFT unchanged")
        }
        _ => (Certainty::Likely, "beyond chance; TTFT is up too", "inter-token up, TTFT up too"),
    };
    let found = Found::new(certainty, reason, gaps.ns[1], gaps.growth()).p(gaps.test.p_up).seen_as(symptom);
    let found = found.says(gaps.sentence("inter-token"));
    Ok(grown(case, earlier, found))
}

/// What of a step grew.
fn grown(case: &Case, earlier: &Facts, found: Found) -> Found {
    let mean = |facts: &Facts, figure: fn(&DecodeStep) -> u64| {
        let sum: u64 = facts.decode_steps.iter().map(figure).sum();
        sum as f64 / facts.decode_steps.len().max(1) as f64
    };
    let both = |figure: fn(&DecodeStep) -> u64| (mean(earlier, figure), mean(case.now, figure));
    let (rows, positions) = (both(|step| step.rows), both(|step| step.position));
    let plain = (percentile(50, &earlier.plain_gaps), percentile(50, &case.now.plain_gaps));
    let beside = |facts: &Facts| share(facts.gaps_beside_prompts, facts.gaps);
    let found = found
        .says(format!("steps that only decode: {:.1} answers (earlier {:.1}) at position {:.0} (earlier {:.0}), n {} (earlier {})", rows.1, rows.0, positions.1, positions.0, case.now.decode_steps.len(), earlier.decode_steps.len()))
        .says(format!("gaps in such steps, p50: {} (earlier {})", some_time(plain.1), some_time(plain.0)))
        .says(format!("{} of the time between tokens is in steps with prompts of others (earlier {})", percent(beside(case.now)), percent(beside(earlier))));
    let plain_grew = matches!(plain, (Some(before), Some(now)) if now as f64 >= GROWTH * before as f64);
    let ratio = |(before, now): (f64, f64)| now / before.max(1.0);
    if !plain_grew && beside(case.now) > beside(earlier) {
        return found.at(
            Stage::Prefill,
            "prompts of others in the same steps: their lengths, and --batch-tokens, which cuts them",
        );
    }
    let look_at = match (ratio(rows), ratio(positions)) {
        (rows, positions) if rows >= GROWTH && rows >= positions => {
            "larger batches: whether they are past the ridge point, where arithmetic takes longer than reading the weights (`firstlight bench --sweep`); fewer --slots"
        }
        (_, positions) if positions >= GROWTH => {
            "longer sequences: each token reads all keys and values before it; shorter contexts, or --kv-cache f16"
        }
        _ => {
            "the device itself: same batches at the same positions take longer; its clock, and who else uses it (`firstlight doctor`)"
        }
    };
    found.at(Stage::Decode, look_at)
}

/// One window: steps against steps.
fn alone(case: &Case) -> Weighed {
    let steps = &case.now.decode_steps;
    if steps.len() < FEWEST {
        return too_little(steps.len(), "steps that only decode");
    }
    let rows: Vec<u64> = steps.iter().map(|step| step.rows).collect();
    let by_batch: Vec<(u64, u64)> = steps.iter().map(|step| (step.rows, step.lasted)).collect();
    // The batch that most steps had.
    let usual = percentile(50, &rows).unwrap_or(1);
    let alike = || steps.iter().filter(|step| step.rows == usual);
    let positions: Vec<u64> = alike().map(|step| step.position).collect();
    let by_position: Vec<(u64, u64)> = alike().map(|step| (step.position, step.lasted)).collect();
    let batch = costs(&by_batch, &rows);
    let position = costs(&by_position, &positions);
    let words = |what: &str, ends: &Option<Ends>| match ends {
        Some(ends) => format!(
            "a step takes {} at {what} {} and {} at {what} {}, n {}",
            time(ends.small),
            ends.from,
            time(ends.large),
            ends.to,
            ends.trend.n
        ),
        None => format!("at {what} nothing differs that could be compared"),
    };
    let sentence =
        format!("{}; {}", words("batch", &batch), words(&format!("batch {usual}, position"), &position));
    let beyond = |ends: Option<Ends>, least: f64| {
        ends.filter(|ends| ends.ratio() >= least && ends.trend.p_up < ALPHA_EACH)
    };
    let reason = "beyond chance; whether it was always so, only an earlier window tells";
    let of = |ends: Ends| {
        Found::new(Certainty::Likely, reason, ends.trend.n, ends.ratio())
            .p(ends.trend.p_up)
            .says(sentence.clone())
    };
    if let Some(ends) = beyond(batch, BATCH_COSTS) {
        return Ok(of(ends).at(Stage::Decode, "the batch: it is past the ridge point, where arithmetic takes longer than reading the weights (`firstlight bench --sweep`); fewer --slots"));
    }
    match beyond(position, POSITION_COSTS) {
        Some(ends) => Ok(of(ends).at(Stage::Decode, "long sequences: each token reads all keys and values before it; shorter contexts, or --kv-cache f16")),
        None => quiet(sentence),
    }
}

/// A line through steps, at the small end and at the large one.
struct Ends {
    trend: Trend,
    from: u64,
    to: u64,
    small: f64,
    large: f64,
}

impl Ends {
    fn ratio(&self) -> f64 {
        self.large / self.small.max(1.0)
    }
}

fn costs(points: &[(u64, u64)], x: &[u64]) -> Option<Ends> {
    let trend = trend(points).filter(|trend| trend.n >= FEWEST)?;
    let (from, to) = (percentile(5, x)?, percentile(PERCENTILE, x)?);
    Some(Ends { trend, from, to, small: trend.at(from), large: trend.at(to) })
}
