//! The report: timers and gauges, the mean time to first token in parts, percentiles of wholes, ITL against batch and
//! position.
//!
//! Invariant: no figure without the conditions under which it was measured.

use firstlight_engine::report::{Distribution, LatencyReport, RankedRequest};
use leptos::prelude::*;

use super::board::Board;
use super::tables::Table;
use crate::view::bars::{Bar, means, requests};
use crate::view::charts::{Chart, by_batch, by_position, mean};
use crate::view::duration::{count, exact, share, short, three_figures};
use crate::view::markup;
use crate::view::meters::{Meter, gauges, timers};

/// The report.
#[component]
pub fn Report(board: Board) -> impl IntoView {
    let report = Memo::new(move |_| {
        board.frame.track();
        board.session.with_untracked(|session| session.report.clone())
    });
    let any = move || report.with(|report| report.as_ref().is_some_and(|report| report.n > 0));
    view! {
        <section class="tl-card" aria-labelledby="tl-report-title">
            <header class="tl-head"><h2 id="tl-report-title">"Report"</h2></header>
            <Context board report/>
            <Meters board/>
            <p class="tl-empty" class:gone=any>
                "No finished request yet: means and percentiles appear here when the first one ends."
            </p>
            <div class:gone=move || !any()>
                <Means board report/>
                <div class="report-grid">
                    <div tabindex="0" role="region" aria-label="Percentiles"><Percentiles report/></div>
                    <div tabindex="0" role="region" aria-label="Requests at the ranks"><Ranked board report/></div>
                </div>
                <div class="curve-grid">
                    <Curve title="Inter-token latency against the batch" report of=by_batch/>
                    <Curve title="Inter-token latency against the position" report of=by_position/>
                </div>
            </div>
        </section>
    }
}

/// What the figures mean nothing without.
#[component]
fn Context(board: Board, report: Memo<Option<LatencyReport>>) -> impl IntoView {
    let words = move || {
        report.with(|report| {
            let Some(LatencyReport { context, n, n_answered, n_preempted, .. }) = report else {
                let backend = board.session.with(|session| session.backend.clone());
                return backend.map(|b| format!("{} · {}", b.model.name, b.adapter)).unwrap_or_default();
            };
            let rate = context
                .request_rate
                .map_or("no rate".to_owned(), |r| format!("arriving at {} requests/s", three_figures(r)));
            let concurrency = context.concurrency.map_or("concurrency not known".to_owned(), |c| {
                format!("{} under way at once", three_figures(c))
            });
            let cache = if context.prefix_cache { "prefix cache on" } else { "prefix cache off" };
            let slots =
                if context.slots > 0 { format!(" · {} slots", context.slots) } else { String::new() };
            format!(
                "{} requests, {} answered, {} evicted · {rate} · {concurrency} · {cache} · {} {} · {}{slots}",
                count(*n as u64),
                count(*n_answered as u64),
                count(*n_preempted as u64),
                context.model.name,
                context.model.quantisation,
                context.adapter
            )
        })
    };
    view! { <p class="tl-context">{words}</p> }
}

#[component]
fn Meters(board: Board) -> impl IntoView {
    let all = Memo::new(move |_| {
        board.frame.track();
        board.session.with_untracked(|session| {
            timers(session).into_iter().chain(gauges(session)).collect::<Vec<Meter>>()
        })
    });
    let card = move |idx: usize| {
        let with = move |words: fn(&Meter) -> String| {
            Memo::new(move |_| all.with(|all| all.get(idx).map(words).unwrap_or_default()))
        };
        let spark = with(|meter| markup::sparkline(&meter.curve));
        view! {
            <li class="meter">
                <span class="meter-name">{with(|m| m.name.to_owned())}</span>
                <b class="meter-figure">{with(|m| m.figure.clone())}</b>
                <span class="meter-note">{with(|m| m.note.clone())}</span>
                <svg viewBox="0 0 120 28" preserveAspectRatio="none" aria-hidden="true"><g inner_html=move || spark.get()></g></svg>
                <span class="meter-top">{with(|m| if m.top.is_empty() { "none in 60 s".to_owned() } else { format!("up to {} in 60 s", m.top) })}</span>
            </li>
        }
    };
    view! {
        <ul class="meters" aria-label="Timers and gauges">{(0..8).map(card).collect_view()}</ul>
    }
}

fn stacked(bar: &Bar, longest: u64) -> impl IntoView + use<> {
    let pieces = bar.segments.iter().map(|segment| {
        let width = 100.0 * segment.nanos as f64 / bar.whole.max(1) as f64;
        let title = format!("{}: {}", segment.name, short(segment.nanos.checked_div(bar.n).unwrap_or(0)));
        let class = format!("tl-piece part-{}", segment.part.class());
        view! { <span class=class class:hatched=segment.part.is_waste() style=format!("width:{width:.3}%") title=title></span> }
    });
    let width = 100.0 * bar.mean() as f64 / longest.max(1) as f64;
    view! { <span class="tl-bar" aria-hidden="true" style=format!("width:{width:.2}%")>{pieces.collect_view()}</span> }
}

#[component]
fn Means(board: Board, report: Memo<Option<LatencyReport>>) -> impl IntoView {
    let bars = Memo::new(move |_| report.with(|report| report.as_ref().map(means).unwrap_or_default()));
    let single = Memo::new(move |_| {
        report.track();
        board.session.with_untracked(|session| requests(&session.sealed))
    });
    let mean_rows = move || {
        bars.with(|bars| {
            let longest = bars.iter().map(Bar::mean).max().unwrap_or(1);
            let row = |bar: &Bar| {
                let shares = bar.segments.iter().filter(|s| s.nanos as f64 >= 0.001 * bar.whole as f64).map(|s| {
                    let class = format!("swatch part-{}", s.part.class());
                    let of_all = share(s.nanos as f64, bar.whole as f64);
                    view! { <li><span class=class class:hatched=s.part.is_waste() aria-hidden="true"></span>{s.name}" "<b>{of_all}</b></li> }
                });
                view! {
                    <div class="mean">
                        <p class="mean-head">"Mean "{bar.name.clone()}" "<b>{short(bar.mean())}</b>" over n = "{count(bar.n)}</p>
                        {stacked(bar, longest)}
                        <ul class="shares">{shares.collect_view()}</ul>
                    </div>
                }
            };
            bars.iter().map(row).collect_view()
        })
    };
    let single_rows = move || {
        single.with(|bars| {
            let longest = bars.iter().map(|bar| bar.whole).max().unwrap_or(1);
            let row = |bar: &Bar| {
                let id = bar.engine_id.unwrap_or(0);
                view! {
                    <li>
                        <button type="button" class="bar-name" on:click=move |_| board.toggle(id)
                            aria-label=format!("Open request {}, {} to the first token", bar.name, short(bar.whole))>{bar.name.clone()}</button>
                        <span class="bar-room">{stacked(bar, longest)}</span>
                        <span class="bar-figure" aria-hidden="true">{short(bar.whole)}</span>
                    </li>
                }
            };
            bars.iter().map(row).collect_view()
        })
    };
    let table = move || {
        bars.with(|bars| {
            bars.iter()
                .flat_map(|bar| {
                    let sum = vec![
                        bar.name.clone(),
                        "all".into(),
                        exact(bar.whole),
                        short(bar.mean()),
                        share(1.0, 1.0),
                    ];
                    let of = |s: &crate::view::bars::Segment| {
                        vec![
                            bar.name.clone(),
                            s.name.to_owned(),
                            exact(s.nanos),
                            short(s.nanos.checked_div(bar.n).unwrap_or(0)),
                            share(s.nanos as f64, bar.whole as f64),
                        ]
                    };
                    bar.segments.iter().map(of).chain([sum]).collect::<Vec<_>>()
                })
                .collect::<Vec<Vec<String>>>()
        })
    };
    view! {
        <h3>"Time to first token, by its parts"</h3>
        {mean_rows}
        <Table caption="time to first token by part: sums over all requests, means, shares"
            head=&["of", "part", "sum", "mean", "share"] rows=Signal::derive(table)/>
        <h3>"Request by request, the slowest first"</h3>
        <ol class="bar-list">{single_rows}</ol>
    }
}

#[component]
fn Percentiles(report: Memo<Option<LatencyReport>>) -> impl IntoView {
    let rows = move || {
        let wholes = report.with(|report| report.as_ref().map(|report| report.wholes)).unwrap_or_default();
        let metrics: [(&str, Option<Distribution>); 7] = [
            ("TTFT", wholes.ttft),
            ("engine TTFT", wholes.engine_ttft),
            ("queue", wholes.queue),
            ("prefill", wholes.prefill),
            ("ITL", wholes.inter_token),
            ("TPOT", wholes.time_per_output_token),
            ("end to end", wholes.e2e),
        ];
        let row = |(name, of): (&'static str, Option<Distribution>)| {
            let cell =
                |pick: fn(&Distribution) -> u64| of.as_ref().map_or("–".to_owned(), |of| short(pick(of)));
            let n = of.map_or(0, |of| of.n as u64);
            view! {
                <tr>
                    <th scope="row">{name}</th>
                    <td>{cell(|d| d.p50)}</td><td>{cell(|d| d.p90)}</td><td>{cell(|d| d.p95)}</td><td>{cell(|d| d.p99)}</td>
                    <td>{count(n)}</td>
                </tr>
            }
        };
        metrics.map(row).collect_view()
    };
    view! {
        <table class="tl-table">
            <caption>"Percentiles of wholes"</caption>
            <thead><tr>
                <th scope="col">"metric"</th><th scope="col">"p50"</th><th scope="col">"p90"</th><th scope="col">"p95"</th>
                <th scope="col">"p99"</th><th scope="col">"n"</th>
            </tr></thead>
            <tbody>{rows}</tbody>
        </table>
        <p class="tl-note">
            "Percentiles of parts are not shown: they sum to nothing. The p99 of the queue and the p99 of the prefill are two \
             different requests. The table of ranks shows real ones."
        </p>
    }
}

#[component]
fn Ranked(board: Board, report: Memo<Option<LatencyReport>>) -> impl IntoView {
    let rows = move || {
        let ranked = report.with(|report| {
            let report = report.as_ref()?;
            let streamed = !report.at_ttft.is_empty();
            Some(if streamed { report.at_ttft.clone() } else { report.at_engine_ttft.clone() })
        });
        let row = |one: RankedRequest| {
            let engine = one.parts.engine.unwrap_or_default();
            let id = one.engine_id.0;
            view! {
                <tr>
                    <th scope="row">"p"{one.percentile}</th>
                    <td><button type="button" class="link" on:click=move |_| board.toggle(id)>{one.engine_id.to_string()}</button></td>
                    <td>{short(one.ttft)}</td>
                    <td>{short(engine.inbox.total())}</td>
                    <td>{short(engine.queue_wait.total())}</td>
                    <td>{short(engine.waste())}</td>
                    <td>{short(engine.prefill.total())}</td>
                </tr>
            }
        };
        ranked.unwrap_or_default().into_iter().map(row).collect_view()
    };
    view! {
        <table class="tl-table">
            <caption>"The real requests at these ranks of the TTFT"</caption>
            <thead><tr>
                <th scope="col">"rank"</th><th scope="col">"request"</th><th scope="col">"TTFT"</th><th scope="col">"inbox"</th>
                <th scope="col">"queue"</th><th scope="col">"waste"</th><th scope="col">"prefill"</th>
            </tr></thead>
            <tbody>{rows}</tbody>
        </table>
    }
}

#[component]
fn Curve(
    title: &'static str,
    report: Memo<Option<LatencyReport>>,
    of: fn(&LatencyReport) -> Chart,
) -> impl IntoView {
    let chart = Memo::new(move |_| report.with(|report| report.as_ref().map(of).unwrap_or_default()));
    let forgotten = move || match chart.with(|chart| chart.forgotten) {
        0 => String::new(),
        n => format!(" {} gaps are left out: their steps are no longer known.", count(n as u64)),
    };
    let rows = move || {
        chart.with(|chart| {
            let row = |p: &crate::view::charts::Point| {
                let g = &p.gaps;
                vec![p.at.clone(), short(g.min), short(g.p50), mean(g), short(g.max), count(g.n as u64)]
            };
            chart.points.iter().map(row).collect::<Vec<Vec<String>>>()
        })
    };
    view! {
        <figure class="curve-box">
            <figcaption>{title}</figcaption>
            <svg viewBox="0 0 380 206" role="img" aria-label=format!("{title}; the table beneath has the figures")>
                <g inner_html=move || chart.with(markup::chart)></g>
            </svg>
            <p class="tl-note">"Dots are medians, lines reach from the shortest gap to the longest or the top."{forgotten}</p>
            <Table caption=title head=&["at", "shortest", "median", "mean", "longest", "n"] rows=Signal::derive(rows)/>
        </figure>
    }
}
