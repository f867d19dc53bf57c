//! The lanes: one row a request, drawn where it is scrolled into view.
//!
//! Invariant: the elements in the document are those of the rows in view, whatever the number of lanes.

use std::time::Duration;

use leptos::ev::{KeyboardEvent, PointerEvent, WheelEvent};
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use super::board::{Board, Known, Mode, Tip};
use super::steps::Steps;
use crate::view::axis::AxisTick;
use crate::view::duration::short;
use crate::view::figures;
use crate::view::lanes::lane;
use crate::view::markup::{self, AXIS_HEIGHT, LANE_HEIGHT, STEPS_HEIGHT};
use crate::view::rows::{ended_badly, state};

/// Rows that are seen at once; more are scrolled to.
const ROWS_SEEN: usize = 12;
/// Rows that are drawn above and below those that are seen.
const ROWS_AROUND: usize = 3;

/// Lanes, steps and axis.
#[component]
pub fn Lanes(board: Board) -> impl IntoView {
    let plot = NodeRef::<Div>::new();
    let scroller = NodeRef::<Div>::new();
    let scrolled = RwSignal::new(0.0f64);
    let hand = Hand::new(board, plot);
    watch_width(board, plot);
    stay_at_bottom(board, scroller);
    let ticks = Memo::new(move |_| board.ticks());
    let num_rows = Memo::new(move |_| board.rows.with(Vec::len));
    let seen_height = move || LANE_HEIGHT * num_rows.get().clamp(1, ROWS_SEEN) as f64;
    let drawn = Memo::new(move |_| {
        let first = ((scrolled.get() / LANE_HEIGHT).max(0.0) as usize).saturating_sub(ROWS_AROUND);
        board.rows.with(|rows| {
            rows.iter().copied().skip(first).take(ROWS_SEEN + 2 * ROWS_AROUND + 1).collect::<Vec<u64>>()
        })
    });
    let grid = move || {
        let height = seen_height() + STEPS_HEIGHT;
        ticks.with(|ticks: &Vec<AxisTick>| markup::grid(ticks, height))
    };
    let width = move || board.viewport.get().width;
    let active_id = move || board.active.get().map(|id| format!("tl-lane-{id}"));
    view! {
        <div class="plot-box" on:pointerleave=move |_| board.tip.set(None)>
            <div class="plot-head">
                <span class="lane-label axis-name" aria-hidden="true">"since first arrival"</span>
                <div class="plot" node_ref=plot on:wheel=move |event| hand.wheel(&event, true)
                    on:pointerdown=move |event| hand.down(&event) on:pointermove=move |event| hand.moved(&event)
                    on:pointerup=move |event| hand.up(&event) on:pointercancel=move |event| hand.up(&event)>
                    <svg width=width height=AXIS_HEIGHT aria-hidden="true">
                        <g inner_html=move || markup::axis(&ticks.get(), width())></g>
                    </svg>
                </div>
            </div>
            <svg class="grid-layer" width=width height=move || seen_height() + STEPS_HEIGHT aria-hidden="true">
                <g inner_html=grid></g>
            </svg>
            <div class="lanes" role="listbox" tabindex="0" node_ref=scroller
                aria-label="Requests. Up and down choose one, left and right walk through its parts, Enter opens it, plus and minus zoom."
                aria-activedescendant=active_id
                style:height=move || format!("{}px", seen_height())
                on:scroll=move |_| if let Some(el) = scroller.get_untracked() { scrolled.set(f64::from(el.scroll_top())) }
                on:keydown=move |event| keys(board, scroller, &event)
                on:wheel=move |event| hand.wheel(&event, false)
                on:pointerdown=move |event| hand.down(&event)
                on:pointermove=move |event| { hand.moved(&event); hand.hover(&event, scroller) }
                on:pointerup=move |event| hand.up(&event) on:pointercancel=move |event| hand.up(&event)
                on:click=move |event| hand.click(&event, scroller)>
                <div class="lanes-all" role="presentation" style:height=move || format!("{}px", LANE_HEIGHT * num_rows.get() as f64)>
                    <For each=move || drawn.get() key=|id| *id let:id><Lane board id/></For>
                </div>
            </div>
            <Steps board hand/>
        </div>
    }
}

#[component]
fn Lane(board: Board, id: u64) -> impl IntoView {
    let known = Memo::new(move |_| {
        board.frame.track();
        board.known(id)
    });
    let drawn = Memo::new(move |_| {
        let view = board.viewport.get();
        known.with(|known| {
            let facts = &known.as_ref()?.0;
            Some(markup::lane(&lane(&facts.cut, &facts.record.token_at, &view)))
        })
    });
    let of = move |words: fn(&Known) -> String| {
        Memo::new(move |_| known.with(|known| known.as_ref().map(words).unwrap_or_default()))
    };
    let ttft = of(|known| {
        let record = &known.0.record;
        record.ttft.or(record.engine_ttft).map_or_else(|| "–".to_owned(), short)
    });
    let status = of(|known| state(&known.0.record));
    let badly =
        Memo::new(move |_| known.with(|known| known.as_ref().is_some_and(|k| ended_badly(&k.0.record))));
    let lives = Memo::new(move |_| {
        known.with(|known| known.as_ref().is_some_and(|k| k.0.record.finish_reason.is_none()))
    });
    let place =
        Memo::new(move |_| board.rows.with(|rows| rows.iter().position(|row| *row == id).unwrap_or(0)));
    let is_active = move || board.active.get() == Some(id);
    let is_open = move || board.opened.get() == Some(id);
    view! {
        <div class="lane" role="option" id=format!("tl-lane-{id}") class:active=is_active class:opened=is_open class:badly=badly class:lives=lives
            aria-selected=move || if is_open() { "true" } else { "false" }
            style:top=move || format!("{}px", LANE_HEIGHT * place.get() as f64)>
            <span class="lane-label">
                <span class="unseen">"Request "</span><b>"r"{id}</b>
                <span class="lane-state">{status}</span>
                <span class="unseen">"time to first token "</span><span class="lane-ttft">{ttft}</span>
            </span>
            <svg class="lane-plot" width=move || board.viewport.get().width height=LANE_HEIGHT aria-hidden="true">
                <g inner_html=move || drawn.get().unwrap_or_default()></g>
            </svg>
        </div>
    }
}

fn watch_width(board: Board, plot: NodeRef<Div>) {
    let observer = StoredValue::new_local(None::<web_sys::ResizeObserver>);
    Effect::new(move |_| {
        let Some(element) = plot.get() else { return };
        board.resize(f64::from(element.client_width()));
        let seen = element.clone();
        let on_resize = Closure::<dyn Fn()>::new(move || {
            let width = f64::from(seen.client_width());
            // Hidden elements are 0 wide.
            if width > 0.0 {
                board.resize(width);
            }
        });
        if let Ok(made) = web_sys::ResizeObserver::new(on_resize.as_ref().unchecked_ref()) {
            made.observe(&element);
            observer.set_value(Some(made));
        }
        // The observer lives as long as the page.
        on_resize.forget();
    });
    on_cleanup(move || {
        observer.try_with_value(|observer| observer.iter().for_each(web_sys::ResizeObserver::disconnect));
    });
}

/// New lanes come at the bottom; whoever looks there goes on looking there.
fn stay_at_bottom(board: Board, scroller: NodeRef<Div>) {
    Effect::new(move |_| {
        board.rows.track();
        let Some(element) = scroller.get() else { return };
        // Measured before the new lane is there.
        let below = element.scroll_height() - element.scroll_top() - element.client_height();
        if below <= 3 * LANE_HEIGHT as i32 && board.mode.get_untracked() == Mode::Follow {
            let down = move || element.set_scroll_top(element.scroll_height());
            set_timeout(down, Duration::ZERO);
        }
    });
}

/// Pointers and wheel, on whatever of the picture they are.
#[derive(Clone, Copy)]
pub struct Hand {
    board: Board,
    plot: NodeRef<Div>,
    /// Those that are down: id and position.
    pointers: StoredValue<Vec<(i32, f64)>>,
    /// How far the view was dragged since the first came down.
    dragged: StoredValue<f64>,
}

impl Hand {
    fn new(board: Board, plot: NodeRef<Div>) -> Self {
        Self { board, plot, pointers: StoredValue::new(Vec::new()), dragged: StoredValue::new(0.0) }
    }

    /// Pixels from the plot's left edge.
    pub fn x(self, client_x: f64) -> f64 {
        client_x - self.plot.get_untracked().map_or(0.0, |plot| plot.get_bounding_client_rect().left())
    }

    /// A wheel: with Ctrl (a pinch on a touchpad) or on the axis it zooms, sideways it moves, else the page scrolls.
    pub fn wheel(self, event: &WheelEvent, zooms: bool) {
        let (dx, dy) = (event.delta_x(), event.delta_y());
        let unit = if event.delta_mode() == 0 { 1.0 } else { 30.0 };
        if event.ctrl_key() || (zooms && dy != 0.0) {
            event.prevent_default();
            let x = self.x(f64::from(event.client_x()));
            let speed = if event.ctrl_key() { 0.01 } else { 0.002 };
            self.board.move_by_hand(|view| view.zoomed((-dy * unit * speed).clamp(-1.0, 1.0).exp(), x));
        } else if event.shift_key() || dx.abs() > dy.abs() {
            event.prevent_default();
            let by = if dx == 0.0 { dy } else { dx };
            self.board.move_by_hand(|view| view.panned(by * unit));
        }
    }

    /// A pointer comes down.
    pub fn down(self, event: &PointerEvent) {
        if event.button() != 0 {
            return;
        }
        self.pointers.update_value(|pointers| {
            if pointers.is_empty() {
                self.dragged.set_value(0.0);
            }
            pointers.retain(|(id, _)| *id != event.pointer_id());
            pointers.push((event.pointer_id(), f64::from(event.client_x())));
        });
    }

    /// It moves: one drags, two pinch.
    pub fn moved(self, event: &PointerEvent) {
        let (id, x) = (event.pointer_id(), f64::from(event.client_x()));
        // A button that came up elsewhere is not told of.
        if event.buttons() == 0 {
            self.pointers.update_value(Vec::clear);
            return;
        }
        let before = self.pointers.get_value();
        let Some(idx) = before.iter().position(|(one, _)| *one == id) else { return };
        self.pointers.update_value(|pointers| pointers[idx].1 = x);
        match before.as_slice() {
            [(_, was)] => {
                self.dragged.update_value(|dragged| *dragged += (x - was).abs());
                if self.dragged.get_value() > 4.0 {
                    self.board.tip.set(None);
                    self.board.move_by_hand(|view| view.panned(was - x));
                }
            }
            [first, second] => {
                self.dragged.set_value(100.0);
                let other = if idx == 0 { second.1 } else { first.1 };
                let (was, is) = ((first.1 - second.1).abs(), (x - other).abs());
                let middle = self.x((x + other) / 2.0);
                if was > 8.0 && is > 8.0 {
                    self.board.move_by_hand(|view| view.zoomed(is / was, middle));
                }
            }
            _ => {}
        }
    }

    /// It goes up.
    pub fn up(self, event: &PointerEvent) {
        self.pointers.update_value(|pointers| pointers.retain(|(id, _)| *id != event.pointer_id()));
    }

    /// Whether the last press moved the view, and is no click.
    pub fn was_drag(self) -> bool {
        self.dragged.get_value() > 4.0
    }

    fn row_at(self, client_y: f64, scroller: NodeRef<Div>) -> Option<u64> {
        let element = scroller.get_untracked()?;
        let y = client_y - element.get_bounding_client_rect().top() + f64::from(element.scroll_top());
        let idx = (y / LANE_HEIGHT).floor();
        self.board.rows.with_untracked(|rows| rows.get(idx as usize).copied().filter(|_| idx >= 0.0))
    }

    fn hover(self, event: &PointerEvent, scroller: NodeRef<Div>) {
        if event.buttons() != 0 && self.was_drag() {
            return;
        }
        let (x, y) = (f64::from(event.client_x()), f64::from(event.client_y()));
        let found = self.row_at(y, scroller).and_then(|id| {
            let view = self.board.viewport.get_untracked();
            let in_plot = self.x(x);
            if in_plot < 0.0 {
                return None;
            }
            let known = self.board.known(id)?;
            let reach = (view.ns_per_px * 4.0) as u64;
            figures::at(&known.0.record, &known.0.cut, view.at(in_plot), reach)
        });
        self.board.tip.set(found.map(|figures| Tip { x, y, figures, spoken: false }));
    }

    fn click(self, event: &leptos::ev::MouseEvent, scroller: NodeRef<Div>) {
        if self.was_drag() {
            return;
        }
        if let Some(id) = self.row_at(f64::from(event.client_y()), scroller) {
            self.board.toggle(id);
        }
    }
}

/// The listbox' keys.
fn keys(board: Board, scroller: NodeRef<Div>, event: &KeyboardEvent) {
    if event.alt_key() || event.meta_key() || event.ctrl_key() {
        return;
    }
    let quarter = move |sign: f64| board.move_by_hand(|view| view.panned(sign * 0.25 * view.width));
    let zoom = move |factor: f64| board.move_by_hand(|view| view.zoomed(factor, view.width / 2.0));
    match (event.key().as_str(), event.shift_key()) {
        ("ArrowDown", _) => choose(board, scroller, |at, _| at.map_or(0, |at| at + 1)),
        ("ArrowUp", _) => choose(board, scroller, |at, last| at.map_or(last, |at| at.saturating_sub(1))),
        ("Home", _) => choose(board, scroller, |_, _| 0),
        ("End", _) => choose(board, scroller, |_, last| last),
        ("ArrowLeft", true) => quarter(-1.0),
        ("ArrowRight", true) => quarter(1.0),
        ("ArrowLeft", false) => walk(board, -1),
        ("ArrowRight", false) => walk(board, 1),
        ("+" | "=", _) => zoom(2.0),
        ("-" | "_", _) => zoom(0.5),
        ("f" | "F", _) => board.mode.set(Mode::Fit),
        ("l" | "L", _) => board.mode.set(Mode::Follow),
        ("Enter" | " ", _) => {
            let first = board.rows.with_untracked(|rows| rows.first().copied());
            if let Some(id) = board.active.get_untracked().or(first) {
                board.toggle(id);
            }
        }
        ("Escape", _) if board.tip.get_untracked().is_some() => board.tip.set(None),
        ("Escape", _) => board.opened.set(None),
        _ => return,
    }
    event.prevent_default();
}

fn choose(board: Board, scroller: NodeRef<Div>, to: impl Fn(Option<usize>, usize) -> usize) {
    let rows = board.rows.get_untracked();
    let Some(last) = rows.len().checked_sub(1) else { return };
    let active = board.active.get_untracked();
    let at = active.and_then(|id| rows.iter().position(|row| *row == id));
    let next = to(at, last).min(last);
    board.active.set(Some(rows[next]));
    board.tip.set(None);
    if let Some(element) = scroller.get_untracked() {
        let (top, seen) = (next as i32 * LANE_HEIGHT as i32, element.client_height());
        if top < element.scroll_top() {
            element.set_scroll_top(top);
        } else if top + LANE_HEIGHT as i32 > element.scroll_top() + seen {
            element.set_scroll_top(top + LANE_HEIGHT as i32 - seen);
        }
    }
}

/// To the next span of the lane with the focus, or the one before; its figures are shown and read out.
fn walk(board: Board, by: i64) {
    let Some(id) = board.active.get_untracked() else { return };
    let Some(known) = board.known(id) else { return };
    let spans = &known.0.cut.spans;
    let title = board.tip.get_untracked().filter(|tip| tip.spoken).map(|tip| tip.figures);
    let at = title.and_then(|figures| {
        let is = |span: &crate::view::cut::Span| figures::of_span(&known.0.record, span, span.to) == figures;
        spans.iter().position(is)
    });
    let next = match (at, by) {
        (None, 1..) => 0,
        (None, _) => spans.len().saturating_sub(1),
        (Some(at), by) => (at as i64 + by).clamp(0, spans.len().saturating_sub(1) as i64) as usize,
    };
    let Some(span) = spans.get(next) else { return };
    let view = board.viewport.get_untracked();
    let (from, to) = (view.x(span.from), view.x(span.to));
    if to < 0.0 || from > view.width {
        board.move_by_hand(|view| view.panned((from + to) / 2.0 - view.width / 2.0));
    }
    let lane = document().get_element_by_id(&format!("tl-lane-{id}"));
    let plot = lane.and_then(|lane| lane.query_selector(".lane-plot").ok().flatten());
    let place = plot.map(|plot| plot.get_bounding_client_rect());
    let (left, bottom) = place.map_or((0.0, 0.0), |rect| (rect.left(), rect.bottom()));
    let view = board.viewport.get_untracked();
    let middle = ((view.x(span.from) + view.x(span.to)) / 2.0).clamp(0.0, view.width);
    let figures = figures::of_span(&known.0.record, span, span.to);
    board.tip.set(Some(Tip { x: left + middle, y: bottom, figures, spoken: true }));
}

/// The figures beside the cursor.
#[component]
pub fn TipLayer(board: Board) -> impl IntoView {
    let place = move || {
        let size =
            |value: Result<JsValue, JsValue>| value.ok().and_then(|value| value.as_f64()).unwrap_or(800.0);
        let (wide, high) = (size(window().inner_width()), size(window().inner_height()));
        board.tip.get().map_or(String::new(), |tip| {
            let left = (tip.x + 14.0).min(wide - 292.0).max(8.0);
            // Below the cursor, or above it where there is no room.
            if tip.y + 230.0 > high {
                format!("left:{left}px;bottom:{}px", high - tip.y + 12.0)
            } else {
                format!("left:{left}px;top:{}px", tip.y + 16.0)
            }
        })
    };
    let spoken =
        move || board.tip.get().filter(|tip| tip.spoken).map(|tip| tip.figures.spoken()).unwrap_or_default();
    let inside = move || {
        board.tip.get().map(|tip| {
            let lines = tip.figures.lines.into_iter().map(|(name, value)| view! { <dt>{name}</dt><dd>{value}</dd> });
            view! {
                <p class="tip-title">
                    <span class=format!("swatch part-{}", tip.figures.class) class:gone=tip.figures.class.is_empty()></span>
                    {tip.figures.title}
                </p>
                <dl>{lines.collect_view()}</dl>
            }
        })
    };
    view! {
        <div class="tip" class:gone=move || board.tip.with(Option::is_none) style=place aria-hidden="true">{inside}</div>
        <p class="unseen" aria-live="polite">{spoken}</p>
    }
}
