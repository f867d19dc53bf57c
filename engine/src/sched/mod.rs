//! Deciding what runs in a step: sequences, KV blocks, the scheduler, and the batch it hands to a runner.
//!
//! Never names wgpu, is never `async`, never reads a clock: `now` is an argument.
//! Invariant: a sequence is in exactly one of inbox, waiting and running, because each of them owns its sequences.

mod batch;
mod block_pool;
mod config;
mod forks;
mod free_list;
mod prefix_cache;
mod scheduler;
mod sequence;
mod wait_ledger;
mod wait_queue;

pub use batch::{Batch, BlockId, SampleRow};
pub use block_pool::BlockPool;
pub use config::{DEFAULT_MAX_WAITING, PRIORITY_STEP_NS, SchedulerConfig};
pub use prefix_cache::PrefixId;
pub use scheduler::{Ahead, Confirmed, PrefixCounts, Sampled, Scheduled, Scheduler, SchedulerOutput};
pub use sequence::{Sequence, SequenceState};
pub use wait_queue::Rank;
