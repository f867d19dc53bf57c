//! A budget in a terminal: its figures, the twelve stages as a bar, and the lines that a page draws.
//!
//! Pure: a budget in, lines out. Invariant: no line is wider than a plot.

use firstlight_engine::budget::{Bend, BendAt, Bound, Budget, Point, Stage};

use crate::bench::amounts::{grouped, milliseconds, seconds};
use crate::bench::plot::{Bar, Stacked, bars, legend, stacked, wrapped};
use crate::bench::style::{Stretch, Style};

/// All of it.
pub fn lines(budget: &Budget, style: Style) -> Vec<String> {
    let knobs = budget.knobs;
    let by = if budget.measured { "steps as they were measured" } else { "by its rates" };
    let mut lines = vec![
        style.heading(&format!("the budget of a request: {} on {}, {by}", budget.model, budget.computed_by)),
    ];
    lines.extend(wrapped(
        &format!(
            "prompt of {} tokens, answer of {}, {} decoding side by side; the prompt is computed alone",
            grouped(knobs.prompt_tokens.into()),
            grouped(knobs.output_tokens.into()),
            grouped(knobs.batch.into())
        ),
        "  ",
    ));
    lines.push(String::new());
    lines.extend(figures(budget));
    lines.extend([String::new(), style.heading("twelve stages of one request")]);
    lines.extend(budget.stages.iter().map(stage));
    let bar = Stacked {
        label: "one request".into(),
        stretches: vec![
            (Stretch::Prefill, budget.prefill.ns.round() as u64),
            (Stretch::Decode, budget.decode_ns.round() as u64),
        ],
        value: time(budget.total_ns),
    };
    lines.extend(stacked(&[bar], style));
    lines.push(legend(&[Stretch::Prefill, Stretch::Decode], style));
    lines.extend([String::new(), style.heading("where the lines bend")]);
    lines.extend(budget.bends.iter().flat_map(|at| wrapped(&bend(at, budget), "  ")));
    let context = grouped((f64::from(knobs.prompt_tokens) + f64::from(knobs.output_tokens) / 2.0) as u64);
    lines.extend([
        String::new(),
        style.heading(&format!("a decode step against the batch, {context} tokens of context each")),
    ]);
    lines.extend(plot(&budget.steps, "sequence", style));
    lines.extend([String::new(), style.heading("the prefill against the prompt's length")]);
    lines.extend(plot(&budget.prefills, "token", style));
    lines
}

fn figures(budget: &Budget) -> Vec<String> {
    let (prefill, step, room) = (&budget.prefill, &budget.step, &budget.room);
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let gib = |bytes: f64| format!("{:.2} GiB", bytes / f64::from(1 << 30));
    let line = |what: &str, figure: String, beside: String| format!("  {what:<24}{figure:>14}   {beside}");
    let with_kv = match (budget.measured, budget.ridge_with_kv) {
        (true, _) => String::new(),
        (_, Some(ridge)) => format!("; with keys and values read too: {ridge:.0}"),
        (_, None) => "; with keys and values read too: never".into(),
    };
    let host = if budget.measured { format!(", loop {}", time(step.host_ns)) } else { String::new() };
    vec![
        line(
            "prefill",
            time(prefill.ns),
            format!(
                "{} of it attention, which grows as the square",
                percent(prefill.quadratic_ns / prefill.ns)
            ),
        ),
        line(
            "a decode step",
            time(step.ns),
            format!("weights {}, attention {}{host}", time(step.weights_ns), time(step.attention_ns)),
        ),
        line(
            "the answer",
            time(budget.decode_ns),
            format!(
                "{} steps; {} of the request",
                grouped(budget.knobs.output_tokens.saturating_sub(1).into()),
                percent(1.0 - budget.prefill_share)
            ),
        ),
        line(
            "the request",
            time(budget.total_ns),
            format!("{:.1} tokens/s of the whole batch while it decodes", budget.tokens_per_second),
        ),
        line("ridge", format!("{:.0} rows", budget.ridge), format!("free up to here{with_kv}")),
        line(
            "keys and values",
            gib(room.prompt_bytes),
            format!(
                "of the prompt, of {}; {} bytes a token",
                gib(room.pool_bytes),
                grouped(room.bytes_a_token.round() as u64)
            ),
        ),
        line(
            "users",
            grouped(room.users_paged),
            format!(
                "paged, {} tokens each; {} with room for {}",
                grouped(room.average_tokens.into()),
                grouped(room.users_worst_case),
                grouped(budget.knobs.worst_tokens.into())
            ),
        ),
    ]
}

fn stage(stage: &Stage) -> String {
    let name = if stage.inside.is_some() {
        format!("  in {}: {}", stage.inside.unwrap_or_default(), stage.name)
    } else {
        stage.name.clone()
    };
    let figures = match (stage.ns, stage.share) {
        (Some(ns), Some(share)) => {
            let bound = match stage.bound {
                Some(Bound::Memory) => "memory",
                Some(Bound::Compute) => "compute",
                None => "",
            };
            format!("{:>14}{:>8.1}%   {bound}", time(ns), share * 100.0)
        }
        _ => format!("{:>14}            `firstlight trace` measures it", "-"),
    };
    format!("  {:>2} {name:<32}{figures}", stage.stage).trim_end().to_owned()
}

fn bend(bend: &Bend, budget: &Budget) -> String {
    let at = grouped(bend.value.round() as u64);
    match bend.at {
        BendAt::ReadIsArithmetic => {
            format!("{at} rows: below, a step takes as long as reading the weights; above, as its arithmetic")
        }
        BendAt::PromptLinearIsQuadratic => {
            format!("{at} tokens of prompt: from here on attention is more than half of the prefill")
        }
        BendAt::ContextKvIsWeights => format!(
            "{at} tokens of context, with {} sequence{}: keys and values take as long as the weights",
            grouped(budget.knobs.batch.into()),
            plural(budget.knobs.batch)
        ),
        BendAt::BatchFillsPool => {
            format!(
                "{at} users of {} tokens: the pool is full, and the next one waits",
                grouped(budget.room.average_tokens.into())
            )
        }
    }
}

fn plot(points: &[Point], what: &str, style: Style) -> Vec<String> {
    let bar = |point: &Point| Bar {
        label: format!("{} {what}{}", grouped(point.at.into()), plural(point.at)),
        length: point.ns.round() as u64,
        value: format!("{}, attention {:.0}%", time(point.ns), point.attention_ns / point.ns * 100.0),
    };
    bars(&points.iter().map(bar).collect::<Vec<_>>(), style)
}

fn plural(number: u32) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Milliseconds up to ten seconds.
fn time(ns: f64) -> String {
    if ns < 1e10 { milliseconds(ns) } else { seconds(ns) }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::budget::{Knobs, Stack, budget};

    use super::*;
    use crate::bench::plot::WIDTH;

    #[test]
    fn the_reference_is_drawn_with_its_figures() {
        let check = |knobs: Knobs, parts: &[&str]| {
            let lines = lines(&budget(&Stack::reference(), knobs), Style::PLAIN);
            assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
            let text = lines.join("\n");
            assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
            assert!(lines.iter().filter(|line| line.contains("firstlight trace")).count() >= 6, "{text}");
        };
        let knobs = Knobs {
            prompt_tokens: 2000,
            output_tokens: 300,
            batch: 1,
            worst_tokens: 8192,
            average_tokens: Some(2270),
        };
        check(
            knobs,
            &[
                "8B, 16 bits on H100",
                "0.24 GiB",
                "191",
                "53 with room for 8,192",
                "146 rows",
                "299 steps; 95%",
            ],
        );
        check(
            Knobs { prompt_tokens: 1_000_000, output_tokens: 1_000_000, batch: 65_536, ..knobs },
            &["1,000,000"],
        );
        check(Knobs { output_tokens: 1, ..knobs }, &["0 steps; 0%"]);
    }
}
