//! What goes on at the server: its stream of finished timelines, and a look at what runs.
//!
//! While something runs the look comes four times a second, and once in two seconds otherwise: a server without work
//! answers some hundred bytes then. Invariant: after a broken connection the page knows what it would know without.

use std::rc::Rc;

use firstlight_engine::report::LatencyReport;

use super::Shared;
use super::peer::{LIST, REPORT, Trouble, begun};
use crate::protocol::Event;
use crate::view::feed::{RunningList, StepList, TimelineList};
use crate::view::session::{STEPS_KEPT, TIMELINES_KEPT};
use crate::view::sse::{SseItem, SseReader};
use crate::worker::fetch::{Answer, FetchError, sleep};
use crate::worker::tell;

/// Milliseconds between two looks while something runs.
const LOOK_MS: i32 = 250;
/// Looks between two reports at least.
const REPORT_LOOKS: u32 = 4;
/// Of so many only one is made while nothing runs.
const IDLE_LOOKS: u32 = 8;
/// Steps that are asked for at first: more than fit between two looks on most devices.
const STEPS_USUAL: usize = 128;
/// Bytes that a finished timeline may have.
const TIMELINE: usize = 8 << 20;
/// What is added where the connection is lost.
const ONCE_MORE: &str = " It is tried again until it answers.";
/// Milliseconds before a broken connection is tried again: at first, and at most.
const PAUSE_MS: (i32, i32) = (250, 8_000);

/// Hears of finished requests until the backend is closed.
pub(super) async fn listen(shared: Rc<Shared>) {
    let (mut pause, mut is_first) = (PAUSE_MS.0, true);
    // What was told of the last trouble: of one that goes on and on, it is told once.
    let mut told = String::new();
    while !shared.is_closed() {
        let epoch = shared.epoch.get();
        let lost = match begin(&shared, is_first).await {
            Ok(answer) => {
                if told.contains(ONCE_MORE) && shared.epoch.get() == epoch {
                    tell(&Event::Notice { sentence: format!("{} answers again.", shared.peer.address) });
                }
                shared.is_connected.set(true);
                let (lost, heard) = hear(&shared, answer).await;
                if heard {
                    (pause, told) = (PAUSE_MS.0, String::new());
                }
                lost
            }
            Err(trouble) => trouble,
        };
        is_first = false;
        shared.is_connected.set(false);
        if shared.is_closed() {
            return;
        }
        let again = if matches!(lost, Trouble::Fetch(_)) { ONCE_MORE } else { "" };
        let sentence = format!("{}{again}", shared.peer.sentence(&lost));
        if told.is_empty() || (again.is_empty() && sentence != told) {
            tell(&Event::Notice { sentence: sentence.clone() });
            told = sentence;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MS.1);
    }
}

/// Opens the stream, and then reads what there was before it: nothing falls in between.
async fn begin(shared: &Rc<Shared>, is_first: bool) -> Result<Answer, Trouble> {
    let stream = shared.peer.send("/v1/timelines/stream", None, &shared.follow).await?;
    let stream = begun(stream).await?;
    if !is_first {
        let greeting = shared.peer.greet(&shared.follow).await?;
        if greeting.started != shared.started.get() {
            tell(&Event::Notice {
                sentence: format!("{} was started again; what it knew before is gone.", shared.peer.address),
            });
            shared.begin_anew(greeting);
        }
    }
    catch_up(shared).await?;
    Ok(stream)
}

/// The last finished timelines; fewer of them where they are too long.
async fn catch_up(shared: &Rc<Shared>) -> Result<(), Trouble> {
    let mut count = TIMELINES_KEPT;
    let list: TimelineList = loop {
        let path = format!("/v1/timelines?last={count}");
        match shared.peer.get(&path, LIST, &shared.follow).await {
            Err(Trouble::Fetch(FetchError::TooLong(_))) if count > 1 => count /= 4,
            list => break list?,
        }
    };
    for record in list.timelines {
        let event = shared.feed.borrow_mut().sealed(record);
        event.iter().for_each(tell);
    }
    shared.nudged.set(true);
    shared.report_due.set(true);
    Ok(())
}

/// Hears until the stream breaks: why it did, and whether anything was heard on it.
async fn hear(shared: &Rc<Shared>, mut answer: Answer) -> (Trouble, bool) {
    let (mut events, mut heard) = (SseReader::new(TIMELINE), false);
    loop {
        let items = match answer.next().await {
            Ok(Some(piece)) => events.push(&piece),
            Ok(None) => return (FetchError::Broken("the stream ended".to_owned()).into(), heard),
            Err(error) => return (error.into(), heard),
        };
        let items = match items {
            Ok(items) => items,
            Err(too_long) => return (Trouble::Unreadable(too_long.to_string()), heard),
        };
        for item in items {
            if let Err(trouble) = take(shared, item).await {
                return (trouble, heard);
            }
            heard = true;
        }
    }
}

async fn take(shared: &Rc<Shared>, item: SseItem) -> Result<(), Trouble> {
    match item {
        SseItem::Data(data) => {
            let record = serde_json::from_slice(data.as_bytes())
                .map_err(|error| Trouble::Unreadable(error.to_string()))?;
            let event = shared.feed.borrow_mut().sealed(record);
            event.iter().for_each(tell);
            shared.nudged.set(true);
            shared.report_due.set(true);
            Ok(())
        }
        // The server says so where this page did not read fast enough.
        SseItem::Comment(words) if words.contains("missed") => catch_up(shared).await,
        SseItem::Comment(_) => Ok(()),
    }
}

/// Looks at what runs until the backend is closed.
pub(super) async fn watch(shared: Rc<Shared>) {
    let (mut looks, mut looks_since_report, mut is_busy) = (0, REPORT_LOOKS, false);
    loop {
        sleep(LOOK_MS).await;
        if shared.is_closed() {
            return;
        }
        looks += 1;
        looks_since_report += 1;
        if !shared.is_connected.get() {
            continue;
        }
        if looks_since_report >= REPORT_LOOKS && shared.report_due.replace(false) {
            looks_since_report = 0;
            let epoch = shared.epoch.get();
            let report = shared.peer.get::<LatencyReport>("/v1/report", REPORT, &shared.follow).await;
            match report {
                Ok(report) if shared.epoch.get() == epoch => {
                    let event = shared.feed.borrow_mut().report(report);
                    tell(&event);
                }
                Ok(_) => {}
                Err(trouble) => shared.complain(&trouble),
            }
        }
        let expects_news = shared.nudged.replace(false) || is_busy || !shared.asks.borrow().is_empty();
        if expects_news || looks >= IDLE_LOOKS {
            looks = 0;
            match look(&shared, expects_news).await {
                Ok(busy) => is_busy = busy,
                Err(trouble) => {
                    is_busy = false;
                    shared.complain(&trouble);
                }
            }
        }
    }
}

/// One look; whether anything runs.
async fn look(shared: &Rc<Shared>, expects_news: bool) -> Result<bool, Trouble> {
    let epoch = shared.epoch.get();
    let running: RunningList = shared.peer.get("/v1/timelines/running", LIST, &shared.follow).await?;
    let is_busy = !running.timelines.is_empty();
    let mut steps = Vec::new();
    if is_busy || expects_news {
        for count in [STEPS_USUAL, STEPS_KEPT] {
            let path = format!("/v1/steps?last={count}");
            steps = shared.peer.get::<StepList>(&path, LIST, &shared.follow).await?.steps;
            if !shared.feed.borrow().misses(&steps) {
                break;
            }
        }
    }
    // What was asked of a server that was started again since says nothing of the new one; and after a close there is
    // nobody to be told.
    if shared.epoch.get() != epoch || shared.is_closed() {
        return Ok(false);
    }
    let mut feed = shared.feed.borrow_mut();
    let (steps, complaint) = feed.steps(steps);
    let is_news = is_busy || expects_news || !steps.is_empty();
    let (live, other) = feed.live(running, steps);
    drop(feed);
    complaint.iter().chain(&other).for_each(tell);
    if is_news {
        tell(&live);
    }
    Ok(is_busy)
}
