//! The worker: engine, files and networks, away from the page's thread.
//!
//! It never touches the DOM. Invariant: as [`crate::protocol`] says, every ask ends in one `Finished`.

mod clock;
mod fetch;
mod replay;
mod server;

use std::cell::RefCell;
use std::rc::Rc;

use futures_channel::mpsc;
use wasm_bindgen::prelude::*;
use web_sys::{DedicatedWorkerGlobalScope, File, MessageEvent, js_sys};

use self::clock::PageClock;
use crate::protocol::{Command, Event};

/// A command and the files beside it.
pub struct Heard {
    /// What is to be done.
    pub command: Command,
    /// Beside it.
    pub files: Vec<File>,
}

/// Sends an event to the page.
pub fn tell(event: &Event) {
    let scope: DedicatedWorkerGlobalScope = js_sys::global().unchecked_into();
    match serde_json::to_string(event) {
        Ok(text) => {
            if let Err(error) = scope.post_message(&text.into()) {
                web_sys::console::error_1(&error);
            }
        }
        Err(error) => web_sys::console::error_1(&error.to_string().into()),
    }
}

fn heard(message: &MessageEvent) -> Option<Heard> {
    let parts: js_sys::Array = message.data().dyn_into().ok()?;
    let command = serde_json::from_str(&parts.get(0).as_string()?).ok()?;
    let files = parts.iter().skip(1).filter_map(|file| file.dyn_into().ok()).collect();
    Some(Heard { command, files })
}

/// Hears commands from now on.
pub fn start() {
    let scope: DedicatedWorkerGlobalScope = js_sys::global().unchecked_into();
    let (sender, receiver) = mpsc::unbounded();
    let on_message = Closure::<dyn Fn(MessageEvent)>::new(move |message: MessageEvent| {
        match heard(&message) {
            // The receiver lives as long as the worker.
            Some(heard) => drop(sender.unbounded_send(heard)),
            None => web_sys::console::error_1(&"firstlight: no command".into()),
        }
    });
    scope.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    on_message.forget();
    wasm_bindgen_futures::spawn_local(serve(receiver));
}

async fn serve(mut commands: mpsc::UnboundedReceiver<Heard>) {
    let clock: Rc<RefCell<Option<PageClock>>> = Rc::default();
    while let Ok(Heard { command, files: _ }) = commands.recv().await {
        if let Command::Hello { origin_unix_ms, sent_at, .. } = command {
            let page_clock = PageClock::new(origin_unix_ms);
            let heard_at = firstlight_engine::clock::Clock::now(&page_clock);
            *clock.borrow_mut() = Some(page_clock);
            tell(&Event::Hello { sent_at, heard_at, no_webgpu: None });
        }
    }
}
