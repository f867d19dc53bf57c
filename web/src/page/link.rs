//! The way to the worker and back.
//!
//! Invariant: events are handed on in the order in which they were sent.

use std::rc::Rc;

use firstlight_engine::clock::Nanos;
use wasm_bindgen::prelude::*;
use web_sys::{File, MessageEvent, Worker, WorkerOptions, WorkerType, js_sys};

use crate::browser::{nanos, performance, words};
use crate::protocol::{Command, Event};

/// The worker.
#[derive(Clone)]
pub struct Link {
    worker: Rc<Worker>,
}

/// The page's clock: nanoseconds since its time origin.
pub fn now() -> Nanos {
    nanos(performance().1)
}

impl Link {
    /// Starts the worker and hands every event to `hear`. `Err` says why there is none.
    ///
    /// # Errors
    /// The browser starts no module workers.
    pub fn start(hear: impl Fn(Event) + 'static, died: impl Fn(String) + 'static) -> Result<Self, String> {
        // The script that started this page starts the worker too: it left its own address here.
        let script = js_sys::Reflect::get(&js_sys::global(), &"firstlightScript".into())
            .ok()
            .and_then(|value| value.as_string())
            .ok_or("the page was not started by its own script")?;
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        options.set_name("firstlight");
        let worker = Worker::new_with_options(&script, &options).map_err(|error| words(&error))?;
        let on_message = Closure::<dyn Fn(MessageEvent)>::new(move |message: MessageEvent| {
            let Some(text) = message.data().as_string() else { return };
            match serde_json::from_slice(text.as_bytes()) {
                Ok(event) => hear(event),
                Err(error) => web_sys::console::error_1(&format!("firstlight: no event: {error}").into()),
            }
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        on_message.forget();
        // A script that cannot be loaded is told by an event that has no message.
        let on_error = Closure::<dyn Fn(JsValue)>::new(move |error: JsValue| {
            let message = js_sys::Reflect::get(&error, &"message".into()).ok();
            let said = message.and_then(|message| message.as_string()).filter(|said| !said.is_empty());
            died(said.unwrap_or_else(|| "its script could not be loaded".to_owned()));
        });
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        on_error.forget();
        Ok(Self { worker: Rc::new(worker) })
    }

    /// Sends a command.
    pub fn send(&self, command: &Command) {
        self.send_with(command, &[]);
    }

    /// Sends a command with files beside it.
    pub fn send_with(&self, command: &Command, files: &[File]) {
        let Ok(text) = serde_json::to_string(command) else { return };
        let message = js_sys::Array::of1(&text.into());
        files.iter().for_each(|file| {
            message.push(file);
        });
        if let Err(error) = self.worker.post_message(&message) {
            web_sys::console::error_1(&error);
        }
    }

    /// Ends the worker; nothing is heard of it any more.
    pub fn stop(&self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        self.worker.terminate();
    }
}
