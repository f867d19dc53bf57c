//! Showing how far a download, a load or a measurement is: a bar on a terminal, one line elsewhere.
//!
//! Writes to stderr only, so that stdout stays the result's.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cache::human_bytes;
use crate::terminal::{note, shows_bars};

/// A progress bar over bytes or requests.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts at `position` of `total` bytes.
    pub fn bytes(title: &str, position: u64, total: u64) -> Self {
        if !shows_bars() {
            let rest = match position {
                0 => human_bytes(total),
                _ => {
                    format!("{} of {} are left", human_bytes(total - position.min(total)), human_bytes(total))
                }
            };
            note(&format!("{title} ({rest})"));
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let template = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(title.to_owned());
        bar.set_position(position);
        Self { bar }
    }

    /// Over `total` requests, with the time that is left.
    pub fn requests(title: &str, total: u64) -> Self {
        if !shows_bars() {
            note(&format!("{title} ({total} requests)"));
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} requests, {elapsed}, {eta} left")
        {
            bar.set_style(style);
        }
        bar.set_message(title.to_owned());
        bar.set_position(0);
        Self { bar }
    }

    /// Moves it on by one.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Moves it to `position` bytes.
    pub fn set(&self, position: u64) {
        self.bar.set_position(position.min(self.bar.length().unwrap_or(position)));
    }

    /// Takes it off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
