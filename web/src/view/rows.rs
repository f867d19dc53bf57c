//! Which requests have a lane, in which order, and what stands beside it.
//!
//! Invariant: at most [`MOST_LANES`], in the order in which they came.

use firstlight_engine::clock::Nanos;
use firstlight_engine::order::{sort_by_number, sort_pairs};
use firstlight_engine::timeline::{Place, TimelineRecord};

use super::session::Session;

/// The most lanes; older requests stay in the report.
pub const MOST_LANES: usize = 200;

/// The engine's numbers of the requests that have a lane, in the order in which they came.
pub fn shown(session: &Session) -> Vec<u64> {
    let all = session.sealed.iter().rev().take(MOST_LANES).chain(session.live.values());
    let mut rows: Vec<(Nanos, u64)> =
        all.map(|one| (one.stamps.received.unwrap_or(0), one.engine_id.0)).collect();
    sort_pairs(&mut rows);
    rows.dedup();
    let over = rows.len().saturating_sub(MOST_LANES);
    rows.drain(..over);
    rows.into_iter().map(|(_, id)| id).collect()
}

/// The timeline of a request, live or sealed.
pub fn find(session: &Session, id: u64) -> Option<&TimelineRecord> {
    session.live.get(&id).or_else(|| session.sealed.iter().rev().find(|one| one.engine_id.0 == id))
}

/// When the oldest request that lives came.
pub fn oldest_live(session: &Session) -> Option<Nanos> {
    session.live.values().filter_map(|one| one.stamps.received).min()
}

fn span(record: &TimelineRecord, now: Nanos) -> Option<(Nanos, Nanos)> {
    let s = &record.stamps;
    let end = s.finished.map_or(now, |finished| finished.max(s.last_write.unwrap_or(0)));
    Some((s.received?, end))
}

/// From the first arrival to the last end of all that have a lane.
pub fn extent(session: &Session) -> Option<(Nanos, Nanos)> {
    let sealed = session.sealed.iter().rev().take(MOST_LANES);
    let spans = sealed.chain(session.live.values()).filter_map(|one| span(one, session.now));
    spans.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
}

/// The last requests that were under way at one time or within a second of each other.
pub fn last_burst(session: &Session) -> Option<(Nanos, Nanos)> {
    let sealed = session.sealed.iter().rev().take(MOST_LANES);
    let mut spans: Vec<(Nanos, Nanos)> =
        sealed.chain(session.live.values()).filter_map(|one| span(one, session.now)).collect();
    sort_by_number(&mut spans, |(_, to)| u64::MAX - to);
    let mut spans = spans.into_iter();
    let mut burst = spans.next()?;
    for (from, to) in spans {
        if to.saturating_add(1_000_000_000) < burst.0 {
            break;
        }
        burst.0 = burst.0.min(from);
    }
    Some(burst)
}

/// How a request stands, in a word or two.
pub fn state(record: &TimelineRecord) -> String {
    if let Some(reason) = record.finish_reason {
        return reason.name().replace('_', " ");
    }
    let generated = record.tokens.generated;
    match record.residency.last().map(|(place, ..)| *place) {
        None | Some(Place::Host) => "preparing".to_owned(),
        Some(Place::Inbox) => "in the inbox".to_owned(),
        Some(Place::Waiting) if record.preemptions > 0 => "evicted".to_owned(),
        Some(Place::Waiting) => "waiting".to_owned(),
        Some(Place::Running) if generated > 0 => format!("token {generated}"),
        Some(Place::Running) => "prefill".to_owned(),
        Some(Place::Done) => "ended".to_owned(),
    }
}

/// Whether it ended in a way that nobody wanted.
pub fn ended_badly(record: &TimelineRecord) -> bool {
    use firstlight_engine::request::FinishReason::{Length, Stop, StopString};
    record.finish_reason.is_some_and(|reason| !matches!(reason, Stop | StopString | Length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures;

    #[test]
    fn rows_are_bounded_in_order_and_found() {
        let mut session = Session::default();
        let record = fixtures::stories().remove(0).record;
        for id in 0..300u64 {
            let mut one = record.clone();
            one.engine_id.0 = id;
            one.stamps.received = Some(1_000 * id);
            one.stamps.finished = Some(1_000 * id + 50_000);
            one.stamps.last_write = None;
            session.sealed.push_back(one);
        }
        let rows = shown(&session);
        assert_eq!((rows.len(), rows[0], rows[199]), (200, 100, 299));
        assert_eq!(find(&session, 299).map(|one| one.engine_id.0), Some(299));
        assert_eq!(find(&session, 300), None);
        assert_eq!(extent(&session), Some((100_000, 349_000)));
        assert_eq!(last_burst(&session), Some((100_000, 349_000)));
        let mut late = record;
        late.engine_id.0 = 900;
        late.stamps.received = Some(5_000_000_000);
        late.stamps.finished = Some(6_000_000_000);
        late.stamps.last_write = None;
        session.sealed.push_back(late);
        assert_eq!(last_burst(&session), Some((5_000_000_000, 6_000_000_000)));
        assert_eq!((last_burst(&Session::default()), extent(&Session::default())), (None, None));
    }
}
