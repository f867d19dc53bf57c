//! All parts of one request as rows of a nested table, and the sums that they are held against.
//!
//! Invariant: a row with rows beneath it is their sum, and the leaves of a table sum to its whole; where a record says
//! otherwise, that is shown.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{TimelineRecord, WaitCauses};

use super::cut::Cut;
use super::part::{CAUSES, Cause, Part};

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRow {
    /// 0 for a part, 1 for a part of one.
    pub depth: u8,
    /// What it is called.
    pub name: &'static str,
    /// The end of `--part-...`.
    pub class: &'static str,
    /// Whether it is what an eviction cost.
    pub waste: bool,
    /// How long.
    pub nanos: Nanos,
}

/// Rows and what they sum to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTable {
    /// What the whole is called.
    pub whole_name: &'static str,
    /// The whole, measured from stamp to stamp.
    pub whole: Nanos,
    /// Its parts.
    pub rows: Vec<PartRow>,
}

impl PartTable {
    /// The sum of the rows of depth 0.
    pub fn sum(&self) -> Nanos {
        self.rows.iter().filter(|row| row.depth == 0).map(|row| row.nanos).sum()
    }

    /// Whether parts and whole agree to the nanosecond.
    pub fn agrees(&self) -> bool {
        self.sum() == self.whole
    }
}

fn part(part: Part, name: &'static str, nanos: Nanos) -> PartRow {
    PartRow { depth: 0, name, class: part.class(), waste: part.is_waste(), nanos }
}

fn of(parent: PartRow, leaves: &[(Part, &'static str, Nanos)]) -> Vec<PartRow> {
    let leaf =
        |&(leaf, name, nanos): &(Part, &'static str, Nanos)| PartRow { depth: 1, ..part(leaf, name, nanos) };
    std::iter::once(parent).chain(leaves.iter().map(leaf)).collect()
}

fn causes(parent: PartRow, kind: fn(Option<Cause>) -> Part, causes: &WaitCauses) -> Vec<PartRow> {
    let leaves = CAUSES.map(|cause| (kind(Some(cause)), cause.name(), cause.of(causes)));
    of(parent, &leaves)
}

/// Up to the first write, else to the first token, else to the end. `None` while there is none of them.
pub fn first_token_table(record: &TimelineRecord) -> Option<PartTable> {
    let parts = record.parts?;
    let stamps = &record.stamps;
    let received = stamps.received?;
    let (whole_name, end) = match (record.ttft, stamps.first_token, stamps.finished) {
        (Some(ttft), ..) => ("the TTFT", received.checked_add(ttft)?),
        (None, Some(token), _) => ("first token - received", token),
        (None, None, Some(finished)) => ("finished - received", finished),
        (None, None, None) => return None,
    };
    let p = &parts.preparation;
    let mut rows =
        vec![part(Part::Gateway, "gateway", parts.gateway), part(Part::Route, "route", parts.route)];
    rows.extend(of(
        part(Part::Template, "preparation", p.total()),
        &[
            (Part::PrepareWait, "wait", p.wait),
            (Part::Template, "template", p.template),
            (Part::Tokenise, "tokenise", p.tokenise),
            (Part::Submit, "submit", p.submit),
        ],
    ));
    if let Some(e) = parts.engine {
        rows.extend(of(
            part(Part::InboxStep, "inbox", e.inbox.total()),
            &[(Part::ModelLoad, "model load", e.inbox.model_load), (Part::InboxStep, "step", e.inbox.step)],
        ));
        let queue = Part::Queue(Cause::dominant(&e.queue_wait));
        rows.extend(causes(part(queue, "queue wait", e.queue_wait.total()), Part::Queue, &e.queue_wait));
        let requeue = part(Part::Requeue(None), "requeue", e.requeue.total());
        rows.extend(causes(requeue, Part::Requeue, &e.requeue));
        rows.push(part(Part::LostPrefill, "lost prefill", e.lost_prefill));
        rows.extend(of(
            part(Part::Prefill, "prefill", e.prefill.total()),
            &[(Part::Prefill, "compute", e.prefill.compute), (Part::PrefillStall, "stall", e.prefill.stall)],
        ));
    }
    if let Some(t) = parts.transport {
        rows.extend(of(
            part(Part::Write, "transport", t.total()),
            &[(Part::Hold, "hold", t.hold), (Part::Write, "write", t.write)],
        ));
    }
    Some(PartTable { whole_name, whole: end.checked_sub(received)?, rows })
}

/// From the first token to the end; `None` without either.
pub fn decode_table(record: &TimelineRecord) -> Option<PartTable> {
    let parts = record.decode?;
    let rows = vec![
        part(Part::Decode, "compute", parts.compute),
        part(Part::DecodeStall, "stall", parts.stall),
        part(Part::DecodeRequeue(None), "requeue", parts.requeue),
        part(Part::Recompute, "recompute", parts.recompute),
    ];
    let whole = record.stamps.finished?.checked_sub(record.stamps.first_token?)?;
    Some(PartTable { whole_name: "finished - first token", whole, rows })
}

/// What is known of a request that lives: its spans up to now, by part.
pub fn so_far(cut: &Cut) -> Option<PartTable> {
    let (from, to) = (cut.from()?, cut.spans.last()?.to);
    let mut rows: Vec<PartRow> = Vec::new();
    for span in &cut.spans {
        let (name, class) = (span.part.name(), span.part.class());
        match rows.iter_mut().find(|row| row.name == name && row.class == class) {
            Some(row) => row.nanos += span.lasted(),
            None => rows.push(part(span.part, name, span.lasted())),
        }
    }
    Some(PartTable { whole_name: "now - received", whole: to - from, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::cut::cut;
    use crate::view::fixtures;

    /// Rows of depth 1 sum to the row of depth 0 above them.
    fn nested(table: &PartTable) -> bool {
        table.rows.iter().enumerate().filter(|(_, row)| row.depth == 0).all(|(idx, row)| {
            let inner: Vec<Nanos> =
                table.rows[idx + 1..].iter().take_while(|row| row.depth == 1).map(|row| row.nanos).collect();
            inner.is_empty() || inner.iter().sum::<Nanos>() == row.nanos
        })
    }

    #[test]
    fn parts_sum_to_their_wholes() {
        for story in fixtures::stories() {
            let record = story.record();
            let tables = [
                first_token_table(&record),
                decode_table(&record),
                so_far(&cut(&record, &story.steps, story.now)),
            ];
            assert!(tables[2].is_some(), "{}", story.name);
            for table in tables.into_iter().flatten() {
                assert!(table.agrees() && nested(&table), "{}: {table:?}", story.name);
            }
        }
    }

    #[test]
    fn a_record_that_does_not_add_up_is_shown_as_such() {
        let mut record = fixtures::stories().remove(0).record();
        record.parts = record
            .parts
            .map(|parts| firstlight_engine::timeline::Parts { gateway: parts.gateway + 1, ..parts });
        assert_eq!(first_token_table(&record).map(|table| table.agrees()), Some(false));
    }
}
