//! The gaps between the tokens of the opened request, and what is to blame for one of them.
//!
//! Invariant: nothing is blamed here: the engine that has the steps is asked, once a gap.

use leptos::ev::KeyboardEvent;
use leptos::html::Div;
use leptos::prelude::*;

use super::board::{Board, Known};
use crate::protocol::Command;
use crate::view::duration::{count, exact, short};
use crate::view::gaps::{GAP_WIDTH, STRIP_HEIGHT, gap_before, gap_name, gap_svg, longest};
use crate::view::kept::Kept;

/// The strip of gaps.
#[component]
pub fn Gaps(board: Board, id: u64, known: Memo<Option<Known>>, blames: RwSignal<Kept>) -> impl IntoView {
    let place = NodeRef::<Div>::new();
    let chosen = RwSignal::new(None::<usize>);
    let asked = RwSignal::new(None::<usize>);
    let token_at = Memo::new(move |_| {
        known.with(|known| known.as_ref().map(|k| k.0.record.token_at.clone()).unwrap_or_default())
    });
    let name =
        Memo::new(move |_| known.with(|k| k.as_ref().map(|k| k.0.record.id.clone()).unwrap_or_default()));
    let num_gaps = Memo::new(move |_| token_at.with(|all| all.len().saturating_sub(1)));
    let drawn = Memo::new(move |_| token_at.with(|all| gap_svg(all)));
    let ask = move |token_idx: usize| {
        chosen.set(Some(token_idx));
        asked.set(Some(token_idx));
        board.command.run(Command::Blame { id: name.get_untracked(), token_idx });
    };
    let ask_longest = move |_| {
        if let Some(idx) = token_at.with_untracked(|all| longest(all)) {
            ask(idx);
            if let Some(el) = place.get_untracked() {
                el.set_scroll_left(((idx as f64 - 8.0) * GAP_WIDTH) as i32);
            }
        }
    };
    let click = move |event: leptos::ev::MouseEvent| {
        let Some(el) = place.get_untracked() else { return };
        let left = el.get_bounding_client_rect().left() - f64::from(el.scroll_left());
        let idx = ((f64::from(event.client_x()) - left) / GAP_WIDTH).floor() as usize + 1;
        if idx <= num_gaps.get_untracked() {
            ask(idx);
        }
    };
    let keys = move |event: KeyboardEvent| {
        let last = num_gaps.get_untracked();
        let at = chosen.get_untracked();
        let next = match event.key().as_str() {
            "ArrowLeft" | "ArrowDown" => at.map_or(last, |at| at.saturating_sub(1)),
            "ArrowRight" | "ArrowUp" => at.map_or(1, |at| at + 1),
            "Home" => 1,
            "End" => last,
            "Enter" | " " => {
                event.prevent_default();
                return at.into_iter().for_each(ask);
            }
            _ => return,
        };
        event.prevent_default();
        chosen.set((last > 0).then(|| next.clamp(1, last.max(1))));
        if let (Some(el), Some(idx)) = (place.get_untracked(), chosen.get_untracked()) {
            el.set_scroll_left((idx as f64 * GAP_WIDTH - f64::from(el.client_width()) / 2.0) as i32);
        }
    };
    let words = move || {
        let Some(idx) = chosen.get() else { return "none chosen".to_owned() };
        let gap = token_at.with(|all| gap_before(all, idx));
        gap.map_or("none".to_owned(), |gap| format!("token {idx}: {}", short(gap)))
    };
    let figures = move || {
        chosen.get().and_then(|idx| {
            let gap = token_at.with(|all| gap_before(all, idx))?;
            let step = known.with(|k| k.as_ref()?.0.record.token_step.get(idx).copied());
            let step = step.map(|step| format!(", made by step {}", count(step))).unwrap_or_default();
            Some(format!("Token {idx} came {} after the one before it{step}.", exact(gap)))
        })
    };
    let sentence = move || {
        let idx = asked.get().filter(|asked| chosen.get() == Some(*asked))?;
        let answer = blames.with(|all| name.with(|name| all.get(&gap_name(name, idx)).map(str::to_owned)));
        Some(answer.unwrap_or_else(|| "Asking what is to blame ...".to_owned()))
    };
    let marker = move || {
        chosen.get().map(|idx| view! { <rect class="gap-chosen" x=(idx as f64 - 1.0) * GAP_WIDTH y="0" width=GAP_WIDTH height=STRIP_HEIGHT></rect> })
    };
    view! {
        <div class="gaps" class:gone=move || num_gaps.get() == 0>
            <div class="tl-head">
                <h3>"Gaps between tokens"</h3>
                <button type="button" on:click=ask_longest>"Why was the slowest one slow?"</button>
            </div>
            <div class="gap-strip" node_ref=place role="slider" tabindex="0"
                aria-label=format!("Gaps between the tokens of r{id}; Enter asks what is to blame")
                aria-valuemin="1" aria-valuemax=move || num_gaps.get().max(1).to_string()
                aria-valuenow=move || chosen.get().unwrap_or(1).to_string() aria-valuetext=words
                on:click=click on:keydown=keys>
                <svg width=move || GAP_WIDTH * num_gaps.get() as f64 height=STRIP_HEIGHT aria-hidden="true">
                    {marker}
                    <g inner_html=move || drawn.get()></g>
                </svg>
            </div>
            <p class="gap-words">
                {move || figures().unwrap_or_else(|| "Choose a gap to ask what is to blame for it.".to_owned())}
            </p>
            <p class="gap-blame" role="status">{sentence}</p>
        </div>
    }
}
