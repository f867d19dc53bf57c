//! What a replay sends: requests with their instants, lengths and beginnings, from timelines or from a list of lengths.
//!
//! It reads no file. Invariant: arrivals are in the order in which they were put on the inbox.

use std::collections::HashMap;

use super::observed::HostTimes;
use super::prompts::Prompt;
use crate::clock::Nanos;
use crate::order::sort_by_number;
use crate::request::HostStamps;
use crate::timeline::{Place, RequestTimeline};

/// What a host's writer took, in one recorded request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportTimes {
    /// First token to first text.
    pub hold_ns: Nanos,
    /// First text to first write.
    pub write_ns: Nanos,
    /// Finished to last write.
    pub last_ns: Nanos,
}

/// One request of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrival {
    /// What it is called.
    pub name: String,
    /// The host's part, as it was recorded.
    pub stamps: HostStamps,
    /// Tokens of its answer, at least 1.
    pub output_len: u32,
    /// As `Request::priority`.
    pub priority: i32,
    /// The arrival of which it is another choice.
    pub fork_of: Option<usize>,
    /// Absent where nothing was streamed.
    pub transport: Option<TransportTimes>,
    /// Where it woke the engine up: how long that took.
    pub wake_ns: Option<Nanos>,
    /// Whether it counts, or is only there to be a load.
    pub is_measured: bool,
    pub(super) prompt: Prompt,
}

impl Arrival {
    /// Tokens of its prompt.
    pub fn prompt_len(&self) -> u32 {
        self.prompt.len()
    }
}

/// A load to be replayed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// By `created`.
    pub arrivals: Vec<Arrival>,
    /// Recorded requests that are left out: they never got a token, so that nobody knows what their answers would have been.
    pub left_out: usize,
    /// When the engine could first run a step.
    pub ready_at: Nanos,
    /// What the engine's loop takes between steps.
    pub host: HostTimes,
    /// Beginnings that were in the prefix cache before anybody came.
    pub(super) primers: Vec<Prompt>,
}

impl Plan {
    /// The requests of a recorded run, with `background` beside them. `block_size` is the recording's.
    pub fn recorded<'t>(
        measured: impl IntoIterator<Item = &'t RequestTimeline>,
        background: impl IntoIterator<Item = &'t RequestTimeline>,
        host: HostTimes,
        block_size: u32,
    ) -> Self {
        let measured = measured.into_iter().map(|timeline| (timeline, true));
        let background = background.into_iter().map(|timeline| (timeline, false));
        let mut all: Vec<(&RequestTimeline, bool)> = measured.chain(background).collect();
        let sent = all.len();
        all.retain(|(timeline, _)| timeline.tokens().generated > 0 && timeline.stamps().created().is_some());
        // Ids of an engine are in the order in which they were given out.
        sort_by_number(&mut all, |(timeline, _)| timeline.id().0);
        sort_by_number(&mut all, |(timeline, _)| timeline.stamps().created().unwrap_or(0));
        let mut beginnings = Beginnings { block_size: block_size.max(1), ..Beginnings::default() };
        let mut first_choices: HashMap<&str, usize> = HashMap::new();
        let mut plan = Self { left_out: sent - all.len(), host, ..Self::default() };
        for (idx, (timeline, is_measured)) in all.iter().enumerate() {
            let call = timeline.labels().request_id.as_str();
            let is_choice = !call.is_empty() && !timeline.labels().id.ends_with("#0");
            let fork_of = first_choices.get(call).copied().filter(|_| is_choice);
            let fork_of = fork_of.filter(|first| all[*first].0.tokens().prompt == timeline.tokens().prompt);
            if !call.is_empty() {
                first_choices.entry(call).or_insert(idx);
            }
            let prompt = beginnings.prompt(&all, idx, fork_of, &plan.arrivals);
            let parts = timeline.parts().and_then(|parts| parts.engine).unwrap_or_default();
            if let (true, Some(created)) = (parts.inbox.model_load > 0, timeline.stamps().created()) {
                plan.ready_at = plan.ready_at.max(created + parts.inbox.model_load);
            }
            plan.arrivals.push(Arrival {
                prompt,
                fork_of,
                is_measured: *is_measured,
                wake_ns: plan.host.wake_of(timeline),
                ..recorded(timeline)
            });
        }
        plan.primers = beginnings.primers;
        plan
    }

    /// Requests of which only lengths are known: (instant, prompt tokens, answer's tokens), in order of their instants. All
    /// prompts begin with the same `shared` tokens, as far as they go.
    pub fn of_lengths(requests: impl IntoIterator<Item = (Nanos, u32, u32)>, shared: u32) -> Self {
        let requests = requests.into_iter().zip(0..);
        let common = Prompt::own(COMMON, shared);
        let arrival = |((at, prompt_len, output_len), owner): ((Nanos, u32, u32), u32)| Arrival {
            stamps: HostStamps::at(at),
            output_len: output_len.max(1),
            is_measured: true,
            prompt: common.continued(shared.min(prompt_len.saturating_sub(1)), owner, prompt_len.max(1)),
            ..Arrival::default()
        };
        Self { arrivals: requests.map(arrival).collect(), ..Self::default() }
    }

    /// Requests with a prompt of fewer than `below` tokens get `priority`, all others none.
    pub fn prioritise(&mut self, below: u32, priority: i32) {
        for arrival in &mut self.arrivals {
            arrival.priority = if arrival.prompt_len() < below { priority } else { 0 };
        }
    }
}

/// The owner of tokens that all prompts have: no request's number.
const COMMON: u32 = (1 << 30) - 1;
/// Owners of beginnings that came from before the recording.
const PRIMERS: u32 = 1 << 30;

/// What a timeline says of its own.
fn recorded(timeline: &RequestTimeline) -> Arrival {
    let stamps = timeline.stamps();
    let at = |idx: usize| stamps.host[idx].unwrap_or_default();
    let write_ns = stamps.first_text.zip(stamps.first_write).map(|(text, write)| write - text);
    let hold_ns = stamps.first_token.zip(stamps.first_text).map(|(token, text)| text - token);
    let last_ns = stamps.finished.zip(stamps.last_write).map(|(end, write)| write.saturating_sub(end));
    let transport = hold_ns.zip(write_ns).map(|(hold_ns, write_ns)| TransportTimes {
        hold_ns,
        write_ns,
        last_ns: last_ns.unwrap_or_default(),
    });
    Arrival {
        name: timeline.labels().id.clone(),
        stamps: HostStamps {
            received: at(0),
            checked: at(1),
            routed: at(2),
            preparing: at(3),
            templated: at(4),
            tokenised: at(5),
            created: at(6),
        },
        output_len: timeline.tokens().generated,
        transport,
        ..Arrival::default()
    }
}

/// Who begins like whom, guessed from how much of each prompt was found.
#[derive(Default)]
struct Beginnings {
    block_size: u32,
    /// The last request of which so much was found.
    by_cached: HashMap<u32, usize>,
    /// Made for those whose beginning nobody of the recording had.
    primers: Vec<Prompt>,
    primed: HashMap<u32, usize>,
}

impl Beginnings {
    /// The prompt of `all[idx]`: as much of an earlier one as was found in the cache, then tokens of its own.
    ///
    /// Where several could be the earlier one, in this order: the last of which as much was found, which is of the same
    /// family; one whose prompt and answer are just that long, as in a conversation's next turn; the last that is long
    /// enough; and where there is none, one from before the recording.
    fn prompt(
        &mut self,
        all: &[(&RequestTimeline, bool)],
        idx: usize,
        fork_of: Option<usize>,
        before: &[Arrival],
    ) -> Prompt {
        let (timeline, owner) = (all[idx].0, idx as u32);
        let (len, cached) = (timeline.tokens().prompt.max(1), timeline.tokens().cached);
        if let Some(first) = fork_of {
            return before[first].prompt.clone();
        }
        if cached == 0 {
            return Prompt::own(owner, len);
        }
        // Whole blocks are shared; more is found only of a prompt that is the same to its end.
        let shared = if cached.is_multiple_of(self.block_size) { cached.min(len) } else { len };
        let admitted = admitted_at(timeline).unwrap_or_default();
        // The last token of an answer is never computed.
        let computed = |other: usize| before[other].prompt_len().saturating_add(before[other].output_len - 1);
        let fits = |other: &usize| {
            let stamps = all[*other].0.stamps();
            let of_prompt = shared <= before[*other].prompt_len();
            let at = if of_prompt { stamps.first_token } else { stamps.finished };
            shared <= computed(*other) && at.is_some_and(|at| at <= admitted)
        };
        let earlier = || (0..before.len()).rev().filter(fits);
        let is_turn = |other: &usize| computed(*other) / self.block_size * self.block_size == cached;
        let same = self.by_cached.get(&cached).copied().filter(fits);
        let donor = same.or_else(|| earlier().find(is_turn)).or_else(|| earlier().next());
        self.by_cached.insert(cached, idx);
        match donor {
            Some(donor) => before[donor].prompt.continued(shared, owner, len),
            None => self.primer(shared).continued(shared, owner, len),
        }
    }

    fn primer(&mut self, shared: u32) -> &Prompt {
        let primers = &mut self.primers;
        let idx = *self.primed.entry(shared).or_insert_with(|| {
            primers.push(Prompt::own(PRIMERS + primers.len() as u32, shared));
            primers.len() - 1
        });
        &self.primers[idx]
    }
}

/// When it was first let in.
fn admitted_at(timeline: &RequestTimeline) -> Option<Nanos> {
    timeline.residency().iter().find(|stay| stay.place == Place::Running).map(|stay| stay.from)
}
