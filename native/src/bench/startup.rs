//! `firstlight bench --startup`: from the start of the program to the first token of an answer, with the driver's cache of
//! compiled kernels empty and filled.
//!
//! It starts this program again, once for each measurement. Invariant: the parts of a start sum to its whole, because what
//! no other part is, is the process's own.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstlight_engine::clock::Clock;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::SamplingParams;
use firstlight_engine::text::PromptInput;
use serde::{Deserialize, Serialize};

use crate::ask::Ask;
use crate::cli::{BenchArgs, JsonTarget};
use crate::failure::Failure;
use crate::load::{Needs, engine_thread_timed};
use crate::scratch::Scratch;
use crate::session::Session;
use crate::terminal::{note, write_json, write_line};

/// What the program is told by itself.
const ONCE: &str = "FIRSTLIGHT_STARTUP_ONCE";
/// Where drivers keep compiled kernels: Mesa's and NVIDIA's.
const DRIVER_CACHES: [&str; 2] = ["MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"];
/// The token that the prompt consists of: every vocabulary has it.
const TOKEN: u32 = 1;

/// The parts of one start in nanoseconds, in their order. The last is known to the parent alone.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Start {
    open_ns: u64,
    device_ns: u64,
    weights_ns: u64,
    warm_up_ns: u64,
    first_token_ns: u64,
    #[serde(default)]
    process_ns: u64,
}

impl Start {
    const PARTS: [(&str, &str); 6] = [
        ("process", "starting the program, and what no other part is"),
        ("open", "finding the model, reading headers and tokenizer"),
        ("device", "finding the adapter, opening the device"),
        ("weights", "reading, packing and uploading, while the driver compiles"),
        ("warm-up", "waiting for what the driver had not done by then"),
        ("first token", "the prompt, up to the first token"),
    ];

    /// As in [`Self::PARTS`].
    fn parts(&self) -> [u64; 6] {
        let &Self { open_ns, device_ns, weights_ns, warm_up_ns, first_token_ns, process_ns } = self;
        [process_ns, open_ns, device_ns, weights_ns, warm_up_ns, first_token_ns]
    }

    fn total(&self) -> u64 {
        self.parts().iter().sum()
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct StartupJson {
    schema: &'static str,
    prompt_tokens: u32,
    cold: Vec<Start>,
    warm: Vec<Start>,
}

/// Starts this program as often as `args` say, in turns cold and warm, and shows the medians.
///
/// # Errors
/// A start that failed, in its own words.
pub fn run(args: &BenchArgs, target: &JsonTarget) -> Result<(), Failure> {
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    // Fills the driver's own cache, and the system's of files.
    start_once(None)?;
    for repeat in 0..args.repeats {
        let path = std::env::temp_dir().join(format!("firstlight-startup-{}", std::process::id()));
        let scratch = Scratch::new(path.clone()).map_err(|error| {
            let path = path.display();
            Failure::failed(format!("{path} cannot be made: {error}; set TMPDIR to a writable folder"))
        })?;
        cold.push(start_once(Some(scratch.path()))?);
        warm.push(start_once(None)?);
        note(&format!("start {} of {}, cold and warm", repeat + 1, args.repeats));
    }
    let result =
        StartupJson { schema: "firstlight.startup/1", prompt_tokens: args.prompt_tokens, cold, warm };
    super::save(target, &result)?;
    if *target == JsonTarget::Stdout {
        return Ok(());
    }
    write_line(&table(&result).join("\n"))
}

/// One start in a process of its own, with the same flags; the driver keeps what it compiles in `cache`, or where it always
/// does.
fn start_once(cache: Option<&Path>) -> Result<Start, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::failed(format!("{what}: {error}; run `firstlight doctor` and the bench again"))
    };
    let program = std::env::current_exe().map_err(|error| failed("this program has no path", &error))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(ONCE, "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in DRIVER_CACHES.iter().filter(|_| cache.is_some()) {
        command.env(variable, cache.unwrap_or(Path::new("")));
    }
    let started = Instant::now();
    let output = command.output().map_err(|error| failed("the program cannot be started", &error))?;
    let whole = nanos(started.elapsed());
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().last().unwrap_or("it said nothing").trim_start_matches("firstlight: ");
        return Err(Failure::failed(format!("a start failed: {last}")));
    }
    let mut start: Start =
        serde_json::from_slice(&output.stdout).map_err(|error| failed("a start told no times", &error))?;
    start.process_ns = whole.saturating_sub(start.total());
    Ok(start)
}

/// One start: loads, answers with one token, and prints how long each took.
///
/// # Errors
/// As any command that loads a model.
pub fn once(args: &BenchArgs) -> Result<(), Failure> {
    let (thread, open, loading) = engine_thread_timed(&args.engine, Needs::Ids)?;
    let mut session = Session::new(thread);
    let asked = Instant::now();
    let input = PromptInput::Ids(vec![TOKEN; args.prompt_tokens as usize]);
    let params = SamplingParams { max_tokens: 1, temperature: 0.0, ..SamplingParams::default() };
    let received = session.clock().now();
    session.ask(Ask::new(input, params, "bench", received));
    let mut first_token = None;
    while session.is_answering() {
        match session.hear(Duration::from_millis(100)).map(|heard| heard.event) {
            Some(RequestEvent::Token { .. }) => first_token = first_token.or(Some(asked.elapsed())),
            Some(RequestEvent::Finished { reason, detail, .. }) if first_token.is_none() => {
                return Err(Failure::failed(format!("the first token did not come: {reason:?} {detail:?}")));
            }
            _ => {}
        }
    }
    write_json(&Start {
        open_ns: nanos(open),
        device_ns: nanos(loading.device),
        weights_ns: nanos(loading.weights),
        warm_up_ns: nanos(loading.warm_up),
        first_token_ns: nanos(first_token.unwrap_or_default()),
        process_ns: 0,
    })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The part that `of` names in the middle of `starts`, and at either end.
fn spread(starts: &[Start], of: impl Fn(&Start) -> u64) -> (u64, u64, u64) {
    let mut values: Vec<u64> = starts.iter().map(of).collect();
    values.sort_unstable();
    let at = |idx: usize| values.get(idx).copied().unwrap_or(0);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

fn table(result: &StartupJson) -> Vec<String> {
    let cell = |(median, least, most): (u64, u64, u64)| {
        let seconds = |ns: u64| ns as f64 / 1e9;
        format!(
            "{:>7.2} s {:>16}",
            seconds(median),
            format!("({:.2} to {:.2})", seconds(least), seconds(most))
        )
    };
    let row = |name: &str, what: &str, of: &dyn Fn(&Start) -> u64| {
        let (cold, warm) = (cell(spread(&result.cold, of)), cell(spread(&result.warm, of)));
        format!("{name:<12}{cold}{warm}   {what}").trim_end().to_owned()
    };
    let n = result.cold.len();
    let mut lines = vec![
        format!(
            "From the start of the program to the first token of an answer to {} tokens: medians of {n}, in turns",
            result.prompt_tokens
        ),
        format!("{:<12}{:>26}{:>26}", "", "kernels compiled anew", "kernels in the cache"),
    ];
    for (idx, (name, what)) in Start::PARTS.into_iter().enumerate() {
        lines.push(row(name, what, &|start: &Start| start.parts()[idx]));
    }
    lines.push(row("whole", "", &Start::total));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_their_spread_and_the_parts_sum_to_the_whole() {
        let start = |weights_ns, process_ns| Start { weights_ns, process_ns, ..Start::default() };
        let cold = vec![start(3_000_000_000, 1_000_000_000), start(1, 0), start(2_000_000_000, 0)];
        let result = StartupJson { schema: "", prompt_tokens: 64, warm: vec![start(7, 0)], cold };
        assert_eq!(spread(&result.cold, |start| start.weights_ns), (2_000_000_000, 1, 3_000_000_000));
        assert_eq!(result.cold[0].total(), 4_000_000_000);
        let lines = table(&result);
        assert_eq!(lines.len(), 2 + Start::PARTS.len() + 1);
        assert!(lines[8].starts_with("whole          2.00 s   (0.00 to 4.00)"), "{}", lines[8]);
    }
}
