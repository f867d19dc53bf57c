//! Ctrl-C, heard in a thread of its own and read between steps.
//!
//! Never ends an answer by itself. Invariant: while an answer is running the first Ctrl-C asks for its end, and a
//! second one before that was heard ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};
use crate::terminal::note;

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    answering: Arc<AtomicBool>,
    pressed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on; until [`Self::answering`] as at a prompt.
    ///
    /// # Errors
    /// When the system refuses, or somebody in this process listens already.
    pub fn install() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let heard = interrupt.clone();
        ctrlc::set_handler(move || heard.press())
            .map_err(|error| Failure::failed(format!("Ctrl-C cannot be heard: {error}; try again")))?;
        Ok(interrupt)
    }

    fn press(&self) {
        let again = self.pressed.swap(true, Ordering::SeqCst);
        let answering = self.answering.load(Ordering::SeqCst);
        match (again, answering) {
            (true, true) => std::process::exit(Exit::Interrupted as i32),
            (true, false) => {
                note("");
                std::process::exit(0)
            }
            (false, true) => {}
            (false, false) => note("\nCtrl-C again leaves"),
        }
    }

    /// Nothing is being answered: a second Ctrl-C leaves.
    pub fn at_prompt(&self) {
        self.answering.store(false, Ordering::SeqCst);
        self.pressed.store(false, Ordering::SeqCst);
    }

    /// An answer begins.
    pub fn answering(&self) {
        self.pressed.store(false, Ordering::SeqCst);
        self.answering.store(true, Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed since the last call.
    pub fn take(&self) -> bool {
        self.pressed.swap(false, Ordering::SeqCst)
    }
}
