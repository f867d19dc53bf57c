//! A probe's figures for a person: one table, one request taken apart, one verdict.
//!
//! Pure: figures in, lines out. Invariant: a verdict stands with its evidence and with what to do.

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::Distribution;

use super::report::{AnswerFigures, ProbeReport, Verdict};
use super::verdict::{Judgement, Kind};

/// Milliseconds with two decimals, rounded half up.
fn ms(ns: Nanos) -> String {
    let units = ns / 10_000 + u64::from(ns % 10_000 >= 5_000);
    format!("{}.{:02}", units / 100, units % 100)
}

/// All lines.
pub fn lines(report: &ProbeReport) -> Vec<String> {
    let asked = &report.asked;
    let mut lines = vec![format!(
        "{}, model {}: {} of {} chats answered, {} at once, {} tokens each at most, {} s",
        asked.url,
        asked.model.as_deref().unwrap_or("(not named)"),
        report.answered,
        asked.requests,
        asked.concurrency,
        asked.max_tokens,
        ms(report.wall / 1000),
    )];
    lines.push(format!(
        "{:<32}{:>6}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "milliseconds", "n", "min", "p50", "p90", "p99", "max"
    ));
    let rows = [
        ("connect", report.connect),
        ("TTFT at the client", report.ttft),
        ("TTFT at the server", report.server_ttft),
        ("network and proxies", report.between),
        ("on the way in, by a proxy's stamp*", report.upstream_estimate),
        ("between pieces of text", report.inter_token),
        ("whole answer", report.total),
    ];
    lines.extend(rows.into_iter().filter_map(|(name, figures)| Some(row(name, &figures?))));
    if report.upstream_estimate.is_some() {
        lines.push("* an estimate across two clocks, beside the sum and never part of it".into());
    }
    if report.clocks_differ > 0 {
        lines.push(format!(
            "{} answers reached the server before the proxy had them, by their two clocks: the clocks differ, so there is no estimate",
            report.clocks_differ
        ));
    }
    if !report.replicas.is_empty() {
        let share = |(name, count): (&String, &usize)| format!("{name} {count}");
        lines.push(format!(
            "answered by: {}",
            report.replicas.iter().map(share).collect::<Vec<_>>().join(", ")
        ));
    }
    lines.extend(report.median().and_then(split));
    lines.extend(defects(report));
    lines.extend(sentence(&report.verdict).map(|sentence| format!("verdict: {sentence}")));
    // Names are a stranger's, and none of them moves the cursor of whoever reads this.
    lines.into_iter().map(|line| line.replace(char::is_control, " ")).collect()
}

fn row(name: &str, figures: &Distribution) -> String {
    let values = [figures.min, figures.p50, figures.p90, figures.p99, figures.max];
    let cells: String = values.into_iter().map(|value| format!("{:>10}", ms(value))).collect();
    format!("{name:<32}{:>6}{cells}", figures.n)
}

/// The request that holds the median, in parts that sum to what the client saw.
fn split(answer: &AnswerFigures) -> Option<String> {
    let server = answer.server.as_ref()?;
    let mut parts: Vec<(&str, Nanos)> =
        server.parts.iter().map(|(name, part)| (name.as_str(), *part)).collect();
    parts.push(("network and proxies", Nanos::try_from(answer.between?).ok()?));
    // Rounded at the edges between the parts, so that what is shown sums too.
    let unit = |at: Nanos| at / 10_000 + u64::from(at % 10_000 >= 5_000);
    let (mut at, mut words): (Nanos, Vec<String>) = (0, Vec::new());
    for (name, part) in parts {
        let from = unit(at);
        at = at.checked_add(part)?;
        let shown = unit(at) - from;
        if part > 0 {
            words.push(format!("{} {}.{:02}", name.replace('_', " "), shown / 100, shown % 100));
        }
    }
    let who = answer.replica.as_ref().map(|name| format!(", from {name}")).unwrap_or_default();
    Some(format!("the median one{who}: TTFT {} ms = {}", ms(answer.ttft), words.join(" + ")))
}

fn defects(report: &ProbeReport) -> Vec<String> {
    let mut lines = Vec::new();
    if report.impossible > 0 {
        lines.push(format!(
            "{} answers have a longer TTFT at the server than at the client: a clock runs at another speed, or the server's stamps are wrong; report this defect",
            report.impossible
        ));
    }
    if report.unsummed > 0 {
        lines.push(format!(
            "{} answers have parts that do not sum to their TTFT; report this defect",
            report.unsummed
        ));
    }
    lines
}

/// The verdict in words; none where there is no answer.
pub fn sentence(verdict: &Verdict) -> Option<String> {
    let evidence = verdict.evidence?;
    let Judgement { pieces, bursts, first_arrived, arrived_over, .. } = evidence;
    let by = format!("{} of {} answers", verdict.by, verdict.of);
    let made = evidence.made;
    let tokens = made.map_or(0, |made| made.tokens);
    let span = made.map_or(0, |made| made.made_over);
    let late = made.map_or(0, |made| made.first_late);
    let before = made.map_or(0, |made| made.made_before_first);
    Some(match verdict.kind? {
        Kind::Buffered => format!(
            "something between server and client buffers the stream ({by}). The server made {tokens} tokens over {} ms; their text arrived over {} ms in {bursts} bursts, the first of it {} ms late, when {before} tokens had been made. \
             Look at the proxies on the way: in nginx `proxy_buffering off` and `gzip off` for the API's paths, and nothing that ignores the header `x-accel-buffering: no`",
            ms(span),
            ms(arrived_over),
            ms(late),
        ),
        Kind::Streamed => format!(
            "nothing buffers the stream ({by}). The server made {tokens} tokens over {} ms and their text arrived over {} ms, in {bursts} pieces of their own",
            ms(span),
            ms(arrived_over),
        ),
        Kind::Suspected => format!(
            "this looks buffered ({by}), but only the server's side could tell: {pieces} pieces of text arrived in {bursts} bursts over {} ms, after {} ms of silence. \
             Either the server sends in lumps or something on the way does; ask the server past its proxies and compare, or look there for `proxy_buffering off` and `gzip off`",
            ms(arrived_over),
            ms(first_arrived),
        ),
        Kind::Unsuspicious => format!(
            "no sign of buffering ({by}), as far as it can be seen without the server's timeline: {pieces} pieces of text arrived in {bursts} bursts over {} ms",
            ms(arrived_over),
        ),
        Kind::TooShort => format!(
            "the answers are too short to tell whether something buffers them: {pieces} pieces of text over {} ms; ask for more with --max-tokens, or another question with --prompt",
            ms(arrived_over),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::account::Account;
    use crate::probe::exchange::Exchange;
    use crate::probe::report::Asked;

    const MS: Nanos = 1_000_000;

    fn exchange(arrivals: Vec<Nanos>, ttft: Option<Nanos>) -> Exchange {
        let account = ttft.map(|ttft| Account {
            ttft: Some(ttft),
            parts: vec![("gateway".into(), 4_000), ("prefill".into(), ttft - 4_000)],
            parts_total: Some(ttft),
            sums: true,
            upstream: None,
            route: None,
            made: (0..40).map(|n| ttft + n * 25 * MS).collect(),
        });
        Exchange {
            connect: MS,
            total: *arrivals.last().unwrap() + 1,
            arrivals,
            tokens: None,
            account,
            request_id: None,
            replica: Some("a".into()),
        }
    }

    fn check(exchanges: Vec<Exchange>, expected: &[&str]) {
        let asked = Asked { requests: exchanges.len() as u32, ..Asked::default() };
        let text = lines(&ProbeReport::new(asked, exchanges, Vec::new(), 1)).join("\n");
        for part in expected {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn parts_sum_as_shown_and_the_verdict_stands_with_its_evidence() {
        let streamed = (0..40).map(|n| 103_456_789 + n * 25 * MS).collect();
        check(
            vec![exchange(streamed, Some(100 * MS))],
            &[
                "TTFT 103.46 ms = gateway 0.00 + prefill 100.00 + network and proxies 3.46",
                "verdict: nothing buffers the stream (1 of 1 answers)",
                "answered by: a 1",
            ],
        );
        check(
            vec![exchange(vec![1080 * MS; 40], Some(100 * MS))],
            &[
                "buffers the stream (1 of 1",
                "40 tokens over 975.00 ms",
                "over 0.00 ms in 1 bursts",
                "`proxy_buffering off`",
            ],
        );
        check(
            vec![exchange(vec![900 * MS; 40], None)],
            &["this looks buffered", "after 900.00 ms of silence"],
        );
        check(vec![exchange(vec![50 * MS; 3], None)], &["too short to tell"]);
        check(
            vec![exchange(vec![50 * MS; 12], Some(60 * MS))],
            &["1 answers have a longer TTFT at the server"],
        );
        check(Vec::new(), &["0 of 0 chats answered"]);
    }
}
