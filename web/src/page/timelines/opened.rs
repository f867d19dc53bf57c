//! One request, opened: its parts and their sums, its twelve stages, its tokens, what it was asked.
//!
//! Invariant: every sum stands beside the whole that it is held against.

use firstlight_engine::timeline::TimelineRecord;
use leptos::html::Section;
use leptos::prelude::*;

use super::board::{Board, Known};
use super::gaps::Gaps;
use super::lanes::LANES;
use crate::page::files;
use crate::view::detail::{PartTable, decode_table, first_token_table, so_far};
use crate::view::duration::{count, exact, millis, share, short};
use crate::view::kept::Kept;
use crate::view::rows::state;
use crate::view::stages::{stages, whole};

/// The panel of the opened request; empty where none is.
#[component]
pub fn Opened(board: Board, blames: RwSignal<Kept>, rendered: RwSignal<Kept>) -> impl IntoView {
    move || board.opened.get().map(|id| view! { <Panel board id blames rendered/> })
}

#[component]
fn Panel(board: Board, id: u64, blames: RwSignal<Kept>, rendered: RwSignal<Kept>) -> impl IntoView {
    let known = Memo::new(move |_| {
        board.frame.track();
        board.known(id)
    });
    let with = move |words: fn(&TimelineRecord) -> String| {
        Memo::new(move |_| known.with(|known| known.as_ref().map(|k| words(&k.0.record)).unwrap_or_default()))
    };
    let place = NodeRef::<Section>::new();
    Effect::new(move |_| {
        if let Some(section) = place.get() {
            // Whoever opened it wants to read it; nothing moves where it is in sight already.
            let options = web_sys::ScrollIntoViewOptions::new();
            options.set_block(web_sys::ScrollLogicalPosition::Nearest);
            section.scroll_into_view_with_scroll_into_view_options(&options);
        }
    });
    let close = move || {
        board.opened.set(None);
        // The focus would be lost with what it is in.
        files::focus(LANES);
    };
    let status = with(|record| format!("{}, {}", record.id, state(record)));
    let ends = with(|record| record.finish_detail.clone().unwrap_or_default());
    let broken = with(|record| record.broken.clone().unwrap_or_default());
    view! {
        <section class="tl-card opened" aria-labelledby="tl-opened-title" node_ref=place
            on:keydown=move |event| if event.key() == "Escape" { close() }>
            <header class="tl-head">
                <h2 id="tl-opened-title">"Request r"{id}</h2>
                <span class="opened-state">{status}</span>
                <button type="button" class="tl-close" on:click=move |_| close()>"Close"</button>
            </header>
            <p class="tl-note" class:gone=move || ends.with(String::is_empty)>{ends}</p>
            <p class="tl-failed" class:gone=move || broken.with(String::is_empty)>"A rule of the timeline is broken: "{broken}</p>
            <div class="opened-grid">
                <div tabindex="0" role="region" aria-label="Parts"><Parts known/></div>
                <div tabindex="0" role="region" aria-label="Stages and figures"><Stages board known/><Labels known/></div>
            </div>
            <Gaps board id known blames/>
            <Rendered known rendered/>
        </section>
    }
}

#[component]
fn Parts(known: Memo<Option<Known>>) -> impl IntoView {
    let table = move |caption: &'static str, of: fn(&Known) -> Option<PartTable>| {
        let table = Memo::new(move |_| known.with(|known| known.as_ref().and_then(of)));
        move || table.get().map(|table| part_table(caption, &table))
    };
    view! {
        {table("Up to the first token", |known| first_token_table(&known.0.record))}
        {table("After the first token", |known| decode_table(&known.0.record))}
        {table("So far", |known| so_far(&known.0.cut).filter(|_| known.0.record.finish_reason.is_none()))}
    }
}

fn part_table(caption: &'static str, table: &PartTable) -> impl IntoView + use<> {
    let total = table.whole as f64;
    let rows = table.rows.iter().map(|row| {
        view! {
            <tr class:leaf=row.depth == 1 class:zero=row.nanos == 0>
                <th scope="row">
                    <span class=format!("swatch part-{}", row.class) class:hatched=row.waste aria-hidden="true"></span>
                    {row.name}
                </th>
                <td>{count(row.nanos)}</td>
                <td>{millis(row.nanos)}</td>
                <td>{share(row.nanos as f64, total)}</td>
            </tr>
        }
    });
    let rows = rows.collect_view();
    let agrees = table.agrees();
    let verdict = if agrees {
        format!("= {}, exactly {}", exact(table.sum()), table.whole_name)
    } else {
        format!("{} differ from {} of {}: a defect", exact(table.sum()), exact(table.whole), table.whole_name)
    };
    view! {
        <table class="tl-table parts">
            <caption>{caption}</caption>
            <thead><tr><th scope="col">"part"</th><th scope="col">"ns"</th><th scope="col">"ms"</th><th scope="col">"share"</th></tr></thead>
            <tbody>{rows}</tbody>
            <tfoot><tr><th scope="row">"sum"</th><td colspan="3" class:tl-failed=!agrees>{verdict}</td></tr></tfoot>
        </table>
    }
}

#[component]
fn Stages(board: Board, known: Memo<Option<Known>>) -> impl IntoView {
    let rows = Memo::new(move |_| {
        known.with(|known| {
            let record = &known.as_ref()?.0.record;
            let rows = board.session.with_untracked(|session| stages(record, &session.steps));
            Some((rows, whole(record)?))
        })
    });
    move || {
        rows.get().filter(|(rows, _)| !rows.is_empty()).map(|(rows, whole)| {
            let sum: u64 = rows.iter().filter(|row| row.inside.is_none()).filter_map(|row| row.nanos).sum();
            let agrees = sum == whole;
            let line = rows.into_iter().map(|row| {
                let inside = row.inside.map(|stage| format!("in {stage}"));
                view! {
                    <tr class:leaf=row.inside.is_some() title=row.note>
                        <td>{row.number}</td>
                        <th scope="row">{row.name}</th>
                        <td>{row.nanos.map_or("not measured".to_owned(), millis)}</td>
                        <td>{inside.unwrap_or_else(|| share(row.nanos.unwrap_or(0) as f64, whole as f64))}</td>
                        <td>{row.ran_on.name()}</td>
                    </tr>
                }
            });
            let verdict = if agrees {
                format!("= {}, from received to the last write, exactly", exact(sum))
            } else {
                format!("{} differ from {}: a defect", exact(sum), exact(whole))
            };
            view! {
                <table class="tl-table twelve">
                    <caption>"Twelve stages"</caption>
                    <thead><tr>
                        <th scope="col">"#"</th><th scope="col">"stage"</th><th scope="col">"ms"</th>
                        <th scope="col">"share"</th><th scope="col">"ran on"</th>
                    </tr></thead>
                    <tbody>{line.collect_view()}</tbody>
                    <tfoot><tr><td></td><th scope="row">"sum"</th><td colspan="3" class:tl-failed=!agrees>{verdict}</td></tr></tfoot>
                </table>
            }
        })
    }
}

/// Name and value of what is known beside the parts.
fn facts(record: &TimelineRecord) -> Vec<(&'static str, String)> {
    let tokens = &record.tokens;
    let mut facts = vec![
        (
            "prompt",
            format!("{} tokens, {} of them cached", count(tokens.prompt.into()), count(tokens.cached.into())),
        ),
        ("computed", format!("{} rows", count(tokens.computed))),
        (
            "generated",
            format!(
                "{} tokens, {} of them by steps ahead",
                count(tokens.generated.into()),
                count(record.ahead_tokens.into())
            ),
        ),
    ];
    if tokens.after_disconnect > 0 {
        facts.push((
            "for nobody",
            format!("{} tokens after the client had gone", count(tokens.after_disconnect.into())),
        ));
    }
    let attempts = record.attempts.iter().map(|attempt| {
        let lasted = short(attempt.to.saturating_sub(attempt.from));
        format!(
            "{} computed, {} cached, {lasted}",
            count(attempt.computed.into()),
            count(attempt.cached.into())
        )
    });
    facts.push(("admissions", attempts.collect::<Vec<_>>().join(" · ")));
    facts.push(("evictions", count(record.preemptions.into())));
    if let Some(gpu) = record.gpu {
        let second =
            gpu.first_decode_ns.map(|ns| format!("; second token {}", short(ns))).unwrap_or_default();
        facts.push(("GPU clock", format!("passes to the first token {}{second}", short(gpu.forward_ns))));
    }
    if let Some(estimate) = record.upstream_estimate_ns {
        let sign = if estimate < 0 { "-" } else { "" };
        facts.push((
            "proxy before it",
            format!("about {sign}{} (two clocks; in no sum)", short(estimate.unsigned_abs())),
        ));
    }
    facts.push(("route", record.route.clone()));
    facts.push(("model", format!("{} {}", record.model.name, record.model.quantisation)));
    facts.push(("sha-256", record.model.sha256.clone().unwrap_or_default()));
    facts.push(("configuration", record.engine_config.clone()));
    facts.push(("request", record.request_id.clone()));
    facts.push(("trace", record.trace_id.clone().unwrap_or_default()));
    facts.push(("clock", format!("steps of {}", short(record.clock.resolution_ns))));
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

#[component]
fn Labels(known: Memo<Option<Known>>) -> impl IntoView {
    let facts = Memo::new(move |_| {
        known.with(|known| known.as_ref().map(|k| facts(&k.0.record)).unwrap_or_default())
    });
    let line = |(name, value): (&'static str, String)| view! { <dt>{name}</dt><dd>{value}</dd> };
    view! { <dl class="tl-facts">{move || facts.get().into_iter().map(line).collect_view()}</dl> }
}

#[component]
fn Rendered(known: Memo<Option<Known>>, rendered: RwSignal<Kept>) -> impl IntoView {
    let open = RwSignal::new(false);
    let id = Memo::new(move |_| {
        known.with(|known| known.as_ref().map(|k| k.0.record.id.clone()).unwrap_or_default())
    });
    let text = move || id.with(|id| rendered.with(|all| all.get(id).map(str::to_owned)));
    let shown = move || {
        open.get().then(|| match text() {
        Some(text) => view! { <pre class="tl-prompt" tabindex="0" aria-label="Rendered prompt">{text}</pre> }.into_any(),
        None => view! { <p class="tl-note">"The rendered prompt of this request is not known here: a server keeps it to itself, and older requests are forgotten."</p> }.into_any(),
    })
    };
    view! {
        <details class="tl-details" on:toggle=move |event| {
            let details: web_sys::HtmlDetailsElement = event_target(&event);
            open.set(details.open());
        }>
            <summary>"Rendered prompt"</summary>
            {shown}
        </details>
    }
}
