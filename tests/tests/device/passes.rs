//! One pass of a real device: blocks copied in order before anything else of it, and its time by stage where asked for.

use std::time::Instant;

use firstlight_engine::gpu::{KernelChoice, SampleOn};
use firstlight_engine::runner::{GpuRunner, ModelRunner, RunnerOutput};
use firstlight_engine::sched::{Batch, BlockId, SampleRow};
use firstlight_tests::gpu::drive;
use firstlight_tests::served::{LIMITS, Setup, load};
use firstlight_tests::tiny_model::TinyModel;

use super::{SPLIT, prompt, tiny};

/// One sequence's tokens from position `start` on, in the blocks of `table`, sampled at the last, after `copies`.
fn batch(tokens: &[u32], start: u32, table: &[u32], copies: &[(u32, u32)]) -> Batch {
    let num_rows = tokens.len() as u32;
    let end = start + num_rows;
    let size = LIMITS.block_size;
    Batch {
        ahead: false,
        block_copies: copies.iter().map(|&(from, to)| (BlockId(from), BlockId(to))).collect(),
        token_ids: tokens.to_vec(),
        positions: (start..end).collect(),
        slot_mapping: (start..end).map(|at| table[(at / size) as usize] * size + at % size).collect(),
        query_start: vec![0, num_rows],
        seq_lens: vec![end],
        block_tables: vec![table.iter().copied().map(BlockId).collect()],
        sample_rows: vec![SampleRow {
            row: num_rows - 1,
            params: Default::default(),
            position: end,
            history: vec![],
            prompt_len: end,
        }],
    }
}

/// The bits of the logits.
fn logits(runner: &mut GpuRunner, batch: &Batch) -> Vec<u32> {
    let handle = runner.device().handle().clone();
    let rows = drive(&handle, runner.logits(batch)).expect("a pass");
    rows[0].iter().map(|logit| logit.to_bits()).collect()
}

/// A prompt over blocks 0 and 1, then one token more through `table` after `copies`: as if blocks 0 and 1 were read.
fn check_copied(setup: Setup, copies: &[(u32, u32)], table: &[u32]) {
    let model = TinyModel { num_layers: 3, ..TinyModel::default() };
    let mut runner = load(&tiny(&model), setup);
    let prompt = prompt(20, 1);
    let original = {
        logits(&mut runner, &batch(&prompt, 0, &[0, 1], &[]));
        logits(&mut runner, &batch(&[7], 20, &[0, 1], &[]))
    };
    // The prompt once more, so that nothing of the token above is left, and something else everywhere around it.
    for block in 2..8 {
        logits(&mut runner, &batch(&[block + 30; 16], 0, &[block], &[]));
    }
    logits(&mut runner, &batch(&prompt, 0, &[0, 1], &[]));
    let before = logits(&mut runner, &batch(&[7], 20, table, &[]));
    assert_ne!(before, original, "{table:?} hold something else before the copies");
    logits(&mut runner, &batch(&prompt, 0, &[0, 1], &[]));
    let copied = logits(&mut runner, &batch(&[7], 20, table, copies));
    assert_eq!(copied, original, "through {table:?} after {copies:?}");
}

#[test]
fn attention_through_a_copied_block_is_that_through_the_original_bit_for_bit() {
    let setups = [
        Setup::default(),
        Setup { default_limits: true, ..Setup::default() },
        Setup { choice: Some(SPLIT), ..Setup::default() },
    ];
    for setup in setups {
        check_copied(setup, &[(0, 5), (1, 7)], &[5, 7]);
        check_copied(setup, &[(1, LIMITS.num_blocks - 1)], &[0, LIMITS.num_blocks - 1]);
    }
}

#[test]
fn copies_run_in_their_order() {
    // Two blocks change places by way of a third: each copy reads what the one before it wrote, or overwrites what it read.
    check_copied(Setup::default(), &[(0, 5), (1, 0), (5, 1)], &[1, 0]);
    check_copied(Setup::default(), &[(0, 2), (2, 3), (3, 4), (0, 2)], &[4, 1]);
    check_copied(Setup::default(), &[(3, 2), (0, 2)], &[2, 1]);
}

#[test]
fn a_copy_holds_what_was_there_before_the_pass_that_writes_its_source() {
    let mut runner = load(&tiny(&TinyModel::default()), Setup::default());
    let (ours, theirs) = (prompt(16, 1), prompt(16, 2));
    logits(&mut runner, &batch(&ours, 0, &[0], &[]));
    let original = logits(&mut runner, &batch(&[7], 16, &[0, 1], &[]));
    logits(&mut runner, &batch(&theirs, 0, &[0], &[(0, 4)]));
    let copied = logits(&mut runner, &batch(&[7], 16, &[4, 1], &[]));
    let overwritten = logits(&mut runner, &batch(&[7], 16, &[0, 1], &[]));
    assert_eq!(copied, original);
    assert_ne!(overwritten, original);
}

fn execute(runner: &mut GpuRunner, batch: &Batch) -> (RunnerOutput, u64) {
    let handle = runner.device().handle().clone();
    let start = Instant::now();
    let output = drive(&handle, runner.execute(batch)).expect("a pass");
    (output, start.elapsed().as_nanos() as u64)
}

/// Timed as a whole, by stage, and as a whole again: the tokens are the same, the stages fit into the pass and it into the
/// time that the caller waited.
fn check_stages(choice: Option<KernelChoice>, batch: &Batch) {
    let mut runner = load(&tiny(&TinyModel::default()), Setup { choice, ..Setup::default() });
    assert!(runner.device().facts().timestamps, "the adapter has timestamps");
    let (whole, _) = execute(&mut runner, batch);
    assert!(whole.gpu_ns.is_some() && whole.stages.is_none(), "{whole:?}");
    runner.profile(true);
    let (cut, waited) = execute(&mut runner, batch);
    let (Some(pass), Some(stages)) = (cut.gpu_ns, cut.stages) else { panic!("{cut:?}") };
    assert_eq!(cut.tokens, whole.tokens);
    let sum = stages.embed_ns + stages.layers_ns + stages.head_ns + stages.sample_ns;
    assert!(sum <= pass && pass <= waited, "{stages:?} in {pass} in {waited}");
    assert!(stages.embed_ns > 0 && stages.layers_ns > stages.embed_ns, "{stages:?}");
    let samples = !batch.sample_rows.is_empty();
    assert_eq!(stages.head_ns > 0, samples, "{stages:?}");
    let on_gpu = runner.choice().sample_on == SampleOn::Gpu;
    assert_eq!(stages.sample_ns > 0, samples && on_gpu, "{stages:?}");
    runner.profile(false);
    let (again, _) = execute(&mut runner, batch);
    assert!(again.gpu_ns.is_some() && again.stages.is_none(), "{again:?}");
}

#[test]
fn the_stages_of_a_profiled_pass_fit_into_it() {
    let sampled = batch(&prompt(40, 3), 0, &[0, 1, 2], &[]);
    let unsampled = Batch { sample_rows: vec![], ..sampled.clone() };
    for choice in [None, Some(SPLIT)] {
        check_stages(choice, &sampled);
        check_stages(choice, &unsampled);
    }
}

#[test]
fn without_timestamps_no_time_is_told_and_the_tokens_are_the_same() {
    let checkpoint = tiny(&TinyModel::default());
    let batch = batch(&prompt(40, 3), 0, &[0, 1, 2], &[]);
    let tokens = execute(&mut load(&checkpoint, Setup::default()), &batch).0.tokens;
    let mut runner = load(&checkpoint, Setup { default_limits: true, ..Setup::default() });
    runner.profile(true);
    let (output, _) = execute(&mut runner, &batch);
    assert_eq!(output, RunnerOutput { tokens, gpu_ns: None, stages: None });
}
