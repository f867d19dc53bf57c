//! The step after the present one, decided before the present one's tokens are known.
//!
//! It admits and evicts nobody. Invariant: a step ahead holds everyone who will still run once those tokens are known, in
//! the batch's order, and perhaps some who turn out to have ended with them: their rows are computed for nobody.

use super::{Scheduled, Scheduler, SchedulerOutput};
use crate::clock::Nanos;
use crate::request::RequestId;
use crate::sched::{Batch, Sequence};
use crate::timeline::{Edge, Obstacle};

/// A step that was decided ahead.
#[derive(Debug)]
pub struct Ahead {
    /// Its arrays. Token ids name sampled tokens of the step before: see [`Batch::SAMPLED`].
    pub batch: Batch,
    /// Whose its rows are, in the batch's order.
    ids: Vec<RequestId>,
    obstacle: Option<Obstacle>,
}

/// What has become of a step ahead once the tokens before it are known.
#[derive(Debug)]
pub struct Confirmed {
    /// The pass, as if it had been decided now.
    pub pass: SchedulerOutput,
    /// For each of its sample rows, whether it is anybody's.
    pub wanted: Vec<bool>,
}

impl Scheduler {
    /// Decides the step after `output`, which has been submitted or is about to be: everyone who goes on with the token
    /// that `output` samples. `None` where a pass that knew those tokens might decide otherwise: someone is new or could
    /// be admitted, a prompt is not done, blocks are short.
    pub fn schedule_ahead(&mut self, output: &SchedulerOutput) -> Option<Ahead> {
        let mut rows = Vec::with_capacity(output.scheduled.len());
        for one in &output.scheduled {
            let sequence = self.sequence(one);
            if sequence.num_uncomputed() != one.num_tokens as usize {
                return None;
            }
            if !self.ends_by_length(sequence) {
                // Everyone samples, so that a sequence's place in the batch is that of its token.
                rows.push((one.running_idx, one.seq_idx as u32));
            }
        }
        let ends = rows.len() < output.scheduled.len();
        let full = output.obstacle == Some(Obstacle::Slots) && !ends;
        if rows.is_empty() || !self.inbox.is_empty() || !(full || self.waiting.first().is_none()) {
            return None;
        }
        let lacks = |s: &Sequence| self.config.blocks_for(s.tokens().len() + 1) - s.block_table().len();
        if rows.iter().map(|(idx, _)| lacks(&self.running[*idx])).sum::<usize>() > self.pool.num_free() {
            return None;
        }
        let mut ahead = Ahead { batch: Batch::ahead(), ids: Vec::new(), obstacle: output.obstacle };
        for (running_idx, sampled_idx) in rows {
            self.extend_table_to(running_idx, self.running[running_idx].tokens().len() + 1);
            let sequence = &self.running[running_idx];
            ahead.batch.push_ahead(sequence, sampled_idx, self.config.block_size as usize);
            ahead.ids.push(sequence.id());
        }
        Some(ahead)
    }

    /// Whether the next token is certainly its last.
    fn ends_by_length(&self, sequence: &Sequence) -> bool {
        sequence.num_generated() + 1 >= sequence.params().max_tokens as usize
            || sequence.tokens().len() + 1 >= self.config.max_model_len as usize
    }

    /// The step that was decided ahead is the present one, now that the tokens before it are known. `None` if nobody of it
    /// is left: it was computed for nobody.
    pub fn confirm(&mut self, ahead: &Ahead, now: Nanos) -> Option<Confirmed> {
        if self.running.is_empty() {
            return None;
        }
        let mut left = self.running.iter_mut().enumerate().peekable();
        let (mut scheduled, mut wanted) = (Vec::new(), Vec::with_capacity(ahead.ids.len()));
        for (seq_idx, &id) in ahead.ids.iter().enumerate() {
            let still_here = left.next_if(|(_, sequence)| sequence.id() == id);
            wanted.push(still_here.is_some());
            if let Some((running_idx, sequence)) = still_here {
                sequence.transition(Edge::Chunk { tokens: 1 }, now);
                scheduled.push(Scheduled { id, num_tokens: 1, is_decode: true, running_idx, seq_idx });
            }
        }
        assert!(left.next().is_none(), "somebody runs who has no row in the step ahead");
        let step = self.next_step;
        self.next_step += 1;
        let obstacle = ahead.obstacle.filter(|_| self.num_queued() > 0);
        let (preempted, ended, copies) = (Vec::new(), Vec::new(), Vec::new());
        let pass = SchedulerOutput { step, scheduled, preempted, ended, obstacle, copies };
        Some(Confirmed { pass, wanted })
    }
}
