//! The engine's steps beneath the lanes, on the same axis.
//!
//! Invariant: what a pointer can read here, the keyboard can walk through.

use leptos::ev::KeyboardEvent;
use leptos::html::Div;
use leptos::prelude::*;

use super::board::{Board, Mode, Tip};
use super::lanes::Hand;
use crate::view::figures::of_step;
use crate::view::markup::{self, STEPS_HEIGHT};
use crate::view::steps::{step_at, strip};

/// The strip.
#[component]
pub fn Steps(board: Board, hand: Hand) -> impl IntoView {
    let place = NodeRef::<Div>::new();
    let chosen = RwSignal::new(None::<u64>);
    let drawn = Memo::new(move |_| {
        board.frame.track();
        let view = board.viewport.get();
        let strip = board.session.with_untracked(|session| strip(&session.steps, &view));
        let most = (strip.most_prefill, strip.most_decode);
        (markup::steps(&strip, view.width), most)
    });
    let show = move |id: u64, x: Option<f64>, y: f64, spoken: bool| {
        let origin = board.origin();
        let view = board.viewport.get_untracked();
        let found = board.session.with_untracked(|session| {
            let idx = session.steps.binary_search_by_key(&id, |step| step.id).ok()?;
            let step = session.steps.get(idx)?;
            Some((of_step(step, origin), view.x(step.schedule_at)))
        });
        if let Some((figures, at)) = found {
            let left = place.get_untracked().map_or(0.0, |el| el.get_bounding_client_rect().left());
            board.tip.set(Some(Tip { x: x.unwrap_or(left + at.clamp(0.0, view.width)), y, figures, spoken }));
        }
    };
    let hover = move |event: leptos::ev::PointerEvent| {
        hand.moved(&event);
        if event.buttons() != 0 && hand.was_drag() {
            return;
        }
        let (x, y) = (f64::from(event.client_x()), f64::from(event.client_y()));
        let view = board.viewport.get_untracked();
        let id = board
            .session
            .with_untracked(|session| step_at(&session.steps, &view, hand.x(x)).map(|step| step.id));
        match id {
            Some(id) => show(id, Some(x), y, false),
            None => board.tip.set(None),
        }
    };
    let keys = move |event: KeyboardEvent| {
        let ends = board.session.with_untracked(|session| {
            let (first, last) = (session.steps.front()?.id, session.steps.back()?.id);
            Some((first, last))
        });
        let Some((first, last)) = ends else { return };
        let at = chosen.get_untracked();
        let next = match event.key().as_str() {
            "ArrowLeft" | "ArrowDown" => at.map_or(last, |at| at.saturating_sub(1)),
            "ArrowRight" | "ArrowUp" => at.map_or(first, |at| at + 1),
            "Home" => first,
            "End" => last,
            "+" | "=" => return board.move_by_hand(|view| view.zoomed(2.0, view.width / 2.0)),
            "-" | "_" => return board.move_by_hand(|view| view.zoomed(0.5, view.width / 2.0)),
            "Escape" => return board.tip.set(None),
            _ => return,
        };
        event.prevent_default();
        let next = next.clamp(first, last);
        chosen.set(Some(next));
        let view = board.viewport.get_untracked();
        let at = board.session.with_untracked(|session| {
            let idx = session.steps.binary_search_by_key(&next, |step| step.id).ok()?;
            session.steps.get(idx).map(|step| view.x(step.schedule_at))
        });
        if let Some(x) = at.filter(|x| *x < 0.0 || *x > view.width) {
            board.mode.set(Mode::Free);
            board.move_by_hand(|view| view.panned(x - view.width / 2.0));
        }
        let bottom = place.get_untracked().map_or(0.0, |el| el.get_bounding_client_rect().bottom());
        show(next, None, bottom, true);
    };
    let edge = move |pick: fn(&crate::view::session::Session) -> Option<u64>| {
        move || {
            board.frame.track();
            board.session.with_untracked(pick).unwrap_or(0).to_string()
        }
    };
    let now =
        move || chosen.get().map_or_else(edge(|s| s.steps.front().map(|step| step.id)), |id| id.to_string());
    let text = move || chosen.get().map_or("none chosen".to_owned(), |id| format!("step {id}"));
    view! {
        <div class="steps">
            <span class="lane-label steps-label" aria-hidden="true">
                <b>"steps"</b>
                <span class="lane-state"><span class="wide-only">"prompt tokens "</span>"\u{2191} "{move || drawn.with(|(_, most)| most.0)}</span>
                <span class="lane-state"><span class="wide-only">"decode rows "</span>"\u{2193} "{move || drawn.with(|(_, most)| most.1)}</span>
            </span>
            <div class="plot steps-plot" node_ref=place role="slider" tabindex="0" aria-label="The engine's steps"
                aria-valuemin=edge(|s| s.steps.front().map(|step| step.id))
                aria-valuemax=edge(|s| s.steps.back().map(|step| step.id))
                aria-valuenow=now aria-valuetext=text
                on:keydown=keys on:wheel=move |event| hand.wheel(&event, true)
                on:pointerdown=move |event| hand.down(&event) on:pointermove=hover
                on:pointerup=move |event| hand.up(&event) on:pointercancel=move |event| hand.up(&event)>
                <svg width=move || board.viewport.get().width height=STEPS_HEIGHT aria-hidden="true">
                    <g inner_html=move || drawn.with(|(svg, _)| svg.clone())></g>
                </svg>
            </div>
        </div>
    }
}
