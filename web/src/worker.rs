//! The worker: engine, files and networks, away from the page's thread.
//!
//! It never touches the DOM. Invariant: as [`crate::protocol`] says, every ask ends in one `Finished`.

pub mod blob;
pub mod catalog;
pub mod clock;
mod desk;
pub mod fetch;
pub mod incoming;
pub mod meter;
pub mod obtain;
mod replay;
mod server;
pub mod store;
mod tab;

use firstlight_engine::clock::Clock;
use futures_channel::mpsc;
use wasm_bindgen::prelude::*;
use web_sys::{DedicatedWorkerGlobalScope, File, MessageEvent, js_sys};

use self::clock::PageClock;
use self::desk::Desk;
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

/// Tells something that needs no answer.
pub fn notice(sentence: &str) {
    tell(&Event::Notice { sentence: sentence.to_owned() });
}

fn heard(message: &MessageEvent) -> Option<Heard> {
    let parts: js_sys::Array = message.data().dyn_into().ok()?;
    let command = serde_json::from_slice(parts.get(0).as_string()?.as_bytes()).ok()?;
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
    let mut desk: Option<Desk> = None;
    while let Ok(Heard { command, files }) = commands.recv().await {
        match (command, &mut desk) {
            (Command::Hello { origin_unix_ms, sent_at, page_url, hub }, desk) => {
                let clock = PageClock::new(origin_unix_ms);
                let heard_at = clock.now();
                *desk = Some(Desk::new(clock, page_url, hub));
                tell(&Event::Hello { sent_at, heard_at, no_webgpu: desk::no_webgpu() });
            }
            (command, Some(desk)) => desk.take(command, files).await,
            (_, None) => web_sys::console::error_1(&"firstlight: a command before hello".into()),
        }
    }
}
