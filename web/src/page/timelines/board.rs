//! What the pieces of the picture share: what is in view, what has the focus, what is opened.
//!
//! Invariant: the session is read once an animation frame; a request that ended is cut once.

use std::collections::HashMap;
use std::sync::Arc;

use firstlight_engine::timeline::TimelineRecord;
use leptos::prelude::*;

use crate::protocol::Command;
use crate::view::axis::{AxisTick, Viewport};
use crate::view::cut::{Cut, cut};
use crate::view::figures::Figures;
use crate::view::rows;
use crate::view::session::Session;

/// What the view does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shows what runs now.
    Follow,
    /// Shows all lanes from their first instant to their last.
    Fit,
    /// Nothing: a person moved it.
    Free,
}

/// Figures beside the cursor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tip {
    /// Where, in pixels of the window.
    pub x: f64,
    /// The same.
    pub y: f64,
    /// What.
    pub figures: Figures,
    /// Whether the keyboard asked: then it is read out.
    pub spoken: bool,
}

/// A request and its life, cut.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What was recorded.
    pub record: TimelineRecord,
    /// Its life.
    pub cut: Cut,
}

/// [`Facts`], compared by address: what ended is one object for good, what lives is new each time.
#[derive(Clone, Debug)]
pub struct Known(pub Arc<Facts>);

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub struct Board {
    /// All that the page knows.
    pub session: RwSignal<Session>,
    /// Sends a command.
    pub command: Callback<Command>,
    /// Counts redraws: what reads the session untracked subscribes to it.
    pub frame: RwSignal<u32>,
    /// What is in view.
    pub viewport: RwSignal<Viewport>,
    /// What the view does by itself.
    pub mode: RwSignal<Mode>,
    /// The requests that have a lane.
    pub rows: Memo<Vec<u64>>,
    /// The lane with the focus.
    pub active: RwSignal<Option<u64>>,
    /// The request that is opened.
    pub opened: RwSignal<Option<u64>>,
    /// Beside the cursor.
    pub tip: RwSignal<Option<Tip>>,
    cuts: StoredValue<HashMap<u64, Known>>,
}

impl Board {
    /// A board that redraws when `session` changes.
    pub fn new(session: RwSignal<Session>, command: Callback<Command>) -> Self {
        let frame = RwSignal::new(0u32);
        let rows = Memo::new(move |_| {
            frame.track();
            session.with_untracked(rows::shown)
        });
        let board = Self {
            session,
            command,
            frame,
            viewport: RwSignal::new(Viewport::default()),
            mode: RwSignal::new(Mode::Follow),
            rows,
            active: RwSignal::new(None),
            opened: RwSignal::new(None),
            tip: RwSignal::new(None),
            cuts: StoredValue::new(HashMap::new()),
        };
        board.redraw_on_change();
        board.move_view();
        board.forget();
        board
    }

    fn redraw_on_change(self) {
        let pending = StoredValue::new(false);
        Effect::new(move |_| {
            self.session.track();
            if !pending.get_value() {
                pending.set_value(true);
                request_animation_frame(move || {
                    pending.set_value(false);
                    self.frame.update(|frame| *frame = frame.wrapping_add(1));
                });
            }
        });
    }

    fn move_view(self) {
        Effect::new(move |_| {
            self.frame.track();
            let mode = self.mode.get();
            let view = self.viewport.get_untracked();
            let next = self.session.with_untracked(|session| {
                let fit = |(from, to)| Viewport::fit(from, to, view.width);
                match (mode, rows::oldest_live(session)) {
                    (Mode::Free, _) => None,
                    (Mode::Fit, _) => rows::extent(session).map(fit),
                    (Mode::Follow, Some(oldest)) => Some(view.follow(oldest, session.now)),
                    // What it followed is shown whole at its end.
                    (Mode::Follow, None) => rows::last_burst(session).map(fit),
                }
            });
            if let Some(next) = next.filter(|next| *next != view) {
                self.viewport.set(next);
            }
        });
    }

    /// Another backend counts its requests from 0 again; old lanes go.
    fn forget(self) {
        Effect::new(move |_| {
            self.rows.with(|rows| {
                self.cuts.update_value(|cuts| {
                    cuts.retain(|id, _| rows.binary_search(id).is_ok() || rows.contains(id))
                });
                let gone = |id: &u64| !rows.contains(id);
                if self.opened.get_untracked().as_ref().is_some_and(gone) {
                    self.opened.set(None);
                }
                if self.active.get_untracked().as_ref().is_some_and(gone) {
                    self.active.set(None);
                }
            });
        });
    }

    /// A request as it is now. Not tracked: subscribe to [`Self::frame`].
    pub fn known(self, id: u64) -> Option<Known> {
        self.session.with_untracked(|session| {
            let record = rows::find(session, id)?;
            let cached = self.cuts.with_value(|cuts| cuts.get(&id).cloned());
            if let Some(known) = cached.filter(|known| known.0.record.id == record.id) {
                return Some(known);
            }
            let cut = cut(record, &session.steps, session.now);
            let known = Known(Arc::new(Facts { record: record.clone(), cut }));
            // The last steps of a request may be told of after its end.
            let settled = record.stamps.finished.is_some_and(|finished| {
                let last = session.steps.back().map_or(0, |step| step.done_at);
                last >= finished
                    || session.now >= finished.saturating_add(2_000_000_000)
                    || session.live.is_empty()
            });
            if settled {
                self.cuts.update_value(|cuts| {
                    cuts.insert(id, known.clone());
                });
            }
            Some(known)
        })
    }

    /// The instant that labels count from: the first arrival of all lanes.
    pub fn origin(self) -> u64 {
        self.session.with_untracked(|session| rows::extent(session).map_or(0, |(from, _)| from))
    }

    /// The axis' ticks in view.
    pub fn ticks(self) -> Vec<AxisTick> {
        self.frame.track();
        self.viewport.track();
        self.ticks_now()
    }

    /// The same, untracked.
    pub fn ticks_now(self) -> Vec<AxisTick> {
        let view = self.viewport.get_untracked();
        view.ticks(self.origin(), if view.width < 420.0 { 70.0 } else { 100.0 })
    }

    /// Moves the view by hand.
    pub fn move_by_hand(self, to: impl FnOnce(&Viewport) -> Viewport) {
        self.mode.set(Mode::Free);
        self.viewport.update(|view| *view = to(view));
    }

    /// The picture has another width.
    pub fn resize(self, width: f64) {
        let view = self.viewport.get_untracked();
        if (view.width - width).abs() >= 1.0 {
            let by_itself = self.mode.get_untracked() != Mode::Free;
            self.viewport.set(if by_itself { view.rescaled(width) } else { view.resized(width) });
        }
    }

    /// Opens a request's details, or closes them where they are open.
    pub fn toggle(self, id: u64) {
        self.active.set(Some(id));
        self.opened.update(|opened| *opened = if *opened == Some(id) { None } else { Some(id) });
    }
}
