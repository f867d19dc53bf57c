//! A recording: events with their instants, to be played with its own timing.
//!
//! The format is a JSON list of `{"at": nanoseconds, "event": Event}`, oldest first, as whoever listens to the worker's
//! messages can write it down: `at` is any clock's reading when the event came, and only differences count. A recording
//! begins with `ready` and may begin anywhere after it; prompts and answers in it are the recording's own.
//! It plays nothing itself. Invariant: what comes out never goes back in time and begins with a backend.

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::ReportContext;
use firstlight_engine::timeline::{ModelLabel, NANOS_LIMIT, RequestTimeline};
use serde::{Deserialize, Serialize};

use super::history::History;
use crate::protocol::{Backend, BackendKind, Event};

/// Bytes that a recording may have.
pub const MAX_RECORDING: usize = 64 << 20;

/// An event and when it came.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Recorded {
    /// Of any clock, in nanoseconds.
    pub at: Nanos,
    /// What came.
    pub event: Event,
}

/// Reads a recording from `url`: with its instants from 0 on, and without what only the recording's own page asked for.
///
/// # Errors
/// A sentence: it is no recording.
pub fn read(url: &str, bytes: &[u8]) -> Result<Vec<Recorded>, String> {
    let wrong = |what: String| {
        format!("{url} is no recording: {what}. It must be a JSON list of {{\"at\", \"event\"}}.")
    };
    let mut recorded: Vec<Recorded> =
        serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let Some(first) = recorded.first().map(|first| first.at) else {
        return Err(wrong("it is empty".to_owned()));
    };
    if let Some(idx) = recorded.windows(2).position(|pair| pair[1].at < pair[0].at) {
        return Err(wrong(format!("event {} comes before the one before it", idx + 1)));
    }
    if recorded.last().is_some_and(|last| last.at >= NANOS_LIMIT) {
        return Err(wrong(format!("its instants are not below {NANOS_LIMIT}")));
    }
    recorded.iter_mut().for_each(|one| one.at -= first);
    // The worker has said hello for itself, and knows this browser's models.
    recorded.retain(|one| {
        !matches!(
            one.event,
            Event::Hello { .. }
                | Event::Models { .. }
                | Event::Blame { .. }
                | Event::Diagnosis(_)
                | Event::Exported { .. }
        )
    });
    let begins = matches!(recorded.first(), Some(Recorded { event: Event::Ready(_), .. }));
    if !begins {
        recorded.insert(0, Recorded { at: 0, event: Event::Ready(nobody(&recorded)) });
    }
    for one in &mut recorded {
        if let Event::Ready(backend) = &mut one.event {
            *backend = Backend { kind: BackendKind::Replay, url: Some(url.to_owned()), ..backend.clone() };
        }
    }
    Ok(recorded)
}

/// What answered in a recording that does not say so, as far as its timelines know.
fn nobody(recorded: &[Recorded]) -> Backend {
    let model = recorded.iter().find_map(|one| match &one.event {
        Event::Sealed { timeline } => Some(timeline.model.clone()),
        Event::Live(live) => live.timelines.first().map(|timeline| timeline.model.clone()),
        _ => None,
    });
    Backend {
        kind: BackendKind::Replay,
        url: None,
        model: model.unwrap_or_else(|| ModelLabel { name: "unknown".to_owned(), ..ModelLabel::default() }),
        adapter: String::new(),
        slots: None,
        max_model_len: None,
        chat: true,
        kept: false,
        bench: None,
    }
}

/// Keeps what an event of a recording adds to what the page may ask about; the event itself goes to the page unless
/// something else comes back, which takes its place.
pub fn keep(history: &mut History, event: &Event) -> Option<Event> {
    match event {
        Event::Ready(backend) => {
            let (model, adapter) = (backend.model.clone(), backend.adapter.clone());
            let slots = backend.slots.unwrap_or(0);
            *history = History::new(ReportContext { model, adapter, slots, ..ReportContext::default() });
            None
        }
        Event::Sealed { timeline } => match RequestTimeline::recall(timeline) {
            Ok(recalled) => history.push(recalled),
            Err(rule) => {
                let id = &timeline.id;
                Some(Event::Notice { sentence: format!("The recorded timeline of {id} is broken: {rule}.") })
            }
        },
        Event::Live(live) => {
            history.steps(live.steps.iter().cloned());
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::{answered, step};
    use super::*;
    use crate::protocol::{AskId, Live};

    fn events(text: &str) -> Vec<(Nanos, String)> {
        let word = |event: &Event| {
            let value = serde_json::to_value(event).unwrap();
            value.as_object().unwrap().keys().next().unwrap().to_owned()
        };
        let recorded = read("r.json", text.as_bytes()).unwrap();
        recorded.iter().map(|one| (one.at, word(&one.event))).collect()
    }

    fn written(recorded: &[(Nanos, Event)]) -> String {
        let one = |(at, event): &(Nanos, Event)| Recorded { at: *at, event: event.clone() };
        serde_json::to_string(&recorded.iter().map(one).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_recording_begins_at_0_with_a_backend_that_is_the_recording() {
        let text = Event::Text { ask: AskId(1), text: "x".to_owned(), tokens: 1, token_ids: Vec::new() };
        let sealed = Event::Sealed { timeline: Box::new(answered(1, 0, &[(0, 5)]).record()) };
        let hello = Event::Hello { sent_at: 0, heard_at: 0, no_webgpu: None };
        let of =
            |words: &[(Nanos, &str)]| words.iter().map(|(at, w)| (*at, (*w).to_owned())).collect::<Vec<_>>();
        let (first, second) = ((100, hello), (130, text.clone()));
        assert_eq!(
            events(&written(&[first, second, (130, sealed)])),
            of(&[(0, "ready"), (30, "text"), (30, "sealed")])
        );
        let ready = Event::Ready(nobody(&[]));
        let recording = written(&[(7, ready), (9, text)]);
        assert_eq!(events(&recording), of(&[(0, "ready"), (2, "text")]));
        let Event::Ready(backend) = &read("r.json", recording.as_bytes()).unwrap()[0].event else { panic!() };
        assert_eq!((backend.kind, backend.url.as_deref()), (BackendKind::Replay, Some("r.json")));
    }

    #[test]
    fn what_is_no_recording_is_told() {
        let check = |text: &str, part: &str| {
            let sentence = read("r.json", text.as_bytes()).unwrap_err();
            assert!(sentence.contains("r.json is no recording") && sentence.contains(part), "{sentence}");
        };
        check("", "EOF");
        check("[]", "empty");
        check("{}", "expected a sequence");
        check(r#"[{"at": -1, "event": {"finished": {}}}]"#, "line 1");
        check(r#"[{"at": 1, "event": {"nothing": {}}}]"#, "unknown variant");
        let notice = |at: Nanos| (at, Event::Notice { sentence: String::new() });
        check(&written(&[notice(5), notice(4)]), "event 1 comes before");
        check(&written(&[notice(5), notice(NANOS_LIMIT)]), "not below");
    }

    #[test]
    fn questions_about_a_recording_have_answers() {
        let mut history = History::new(ReportContext::default());
        let live = Live { steps: vec![step(0, 0, 5, &[])], ..Live::default() };
        let record = answered(1, 0, &[(0, 5), (1, 9)]).record();
        let sealed = Event::Sealed { timeline: Box::new(record.clone()) };
        for event in [Event::Ready(nobody(&[])), Event::Live(live), sealed] {
            assert_eq!(keep(&mut history, &event), None);
        }
        assert_eq!((history.timelines().count(), history.last_step()), (1, Some(0)));
        let mut broken = record;
        broken.residency.clear();
        let told = keep(&mut history, &Event::Sealed { timeline: Box::new(broken) });
        assert!(matches!(told, Some(Event::Notice { .. })), "{told:?}");
    }
}
