//! `firstlight budget`: where the time of a request would go, and how many users there is room for, before any of them comes.
//!
//! The arithmetic is the engine's. Invariant: `--check` predicts from costs of the same minutes as it measures in, and from none
//! of the points that it measures.

mod check;
mod print;

use firstlight_engine::budget::{Budget, Knobs, Stack, budget};
use firstlight_engine::costs::StepCosts;
use firstlight_engine::model::Checkpoint;
use firstlight_shaders::KvFormat;

use crate::bench::style::Style;
use crate::cache::{Cache, process_environment};
use crate::cli::{BudgetArgs, EngineArgs};
use crate::failure::Failure;
use crate::source::FileSource;
use crate::terminal::{write_json, write_line};
use crate::{costs, model_text, models, sizing};

/// Tokens of the worst case that the reference stack's users are counted with.
const REFERENCE_WORST_TOKENS: u32 = 8192;

/// Runs the command.
///
/// # Errors
/// Flags that do not go together, lengths beyond the model's, costs that cannot be read; the model, the adapter.
pub fn run(args: &BudgetArgs) -> Result<(), Failure> {
    if !args.reference && (args.weight_bits.is_some() || args.kv_bits.is_some()) {
        return Err(Failure::usage(
            "--weight-bits and --kv-bits go with --reference: the model that is here is measured as it is; give --reference, \
             or another --model or --kv-cache",
        ));
    }
    if args.check {
        return check::run(args);
    }
    let result = if args.reference { of_reference(args) } else { of_this(args)? };
    if args.output.json {
        return write_json(&result);
    }
    write_line(&print::lines(&result, Style::of_stdout()).join("\n"))
}

fn knobs(args: &BudgetArgs, worst_tokens: u32) -> Knobs {
    Knobs {
        prompt_tokens: args.prompt_tokens,
        output_tokens: args.output_tokens,
        batch: args.batch,
        worst_tokens,
        average_tokens: args.average_tokens,
    }
}

fn of_reference(args: &BudgetArgs) -> Budget {
    let bits = |bits: Option<f64>| bits.unwrap_or(16.0);
    let stack = Stack::reference().with_bits(bits(args.weight_bits), bits(args.kv_bits));
    budget(&stack, knobs(args, args.engine.max_model_len.unwrap_or(REFERENCE_WORST_TOKENS)))
}

fn of_this(args: &BudgetArgs) -> Result<Budget, Failure> {
    let checkpoint = checkpoint(&args.engine)?;
    let most = args.engine.max_model_len.unwrap_or(checkpoint.config().max_context);
    // Told before anything is measured.
    sizing::limits(&args.engine, checkpoint.config(), KvFormat::default())?;
    let wanted = args.prompt_tokens.saturating_add(args.output_tokens);
    if wanted > most {
        return Err(Failure::usage(format!(
            "a prompt of {} tokens and an answer of {} make {wanted}, and {} takes {most}; lower --prompt-tokens or \
             --output-tokens",
            args.prompt_tokens,
            args.output_tokens,
            checkpoint.config().name
        )));
    }
    let costs = costs::find(&args.engine, args.costs.as_deref())?;
    Ok(budget(&stack(&args.engine, &checkpoint, costs)?, knobs(args, most)))
}

/// The model and the adapter of `args` with the costs that were kept of them; `None` where none were.
///
/// # Errors
/// The model, its room, the adapter.
pub fn kept(args: &EngineArgs) -> Result<Option<Stack>, Failure> {
    let Some(costs) = costs::kept(args)? else { return Ok(None) };
    stack(args, &checkpoint(args)?, costs).map(Some)
}

/// The headers of the model.
fn checkpoint(args: &EngineArgs) -> Result<Checkpoint<FileSource>, Failure> {
    let files = models::resolve(&args.model, &Cache::locate(&process_environment)?, &process_environment)?;
    Ok(model_text::open(&files)?.checkpoint)
}

/// The model with its costs.
fn stack(args: &EngineArgs, checkpoint: &Checkpoint<FileSource>, costs: StepCosts) -> Result<Stack, Failure> {
    let config = checkpoint.config();
    let measured = KvFormat::ALL.into_iter().find(|format| format.name() == costs.kv_cache);
    let kv = args.kv_cache.format(measured.unwrap_or_default());
    let limits = sizing::limits(args, config, kv)?;
    Ok(Stack::measured(checkpoint, kv, &limits, costs))
}
