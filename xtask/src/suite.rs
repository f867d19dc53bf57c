//! The tests: cheap checks first, then the suite on whatever adapter the machine has.
//!
//! Never skips a check in silence: what only `--full` runs is listed by name at the end.

use std::process::Command;
use std::time::Instant;

use crate::command::{say, watch};
use crate::python::{self, Environment};
use crate::workspace::Workspace;
use crate::{browser, dist, model, nginx, page, vulkan, wasm};

/// What the short run leaves out: name of the check, and what it claims.
const ONLY_IN_FULL: &[(&str, &str)] = &[
    ("simulation", "100,000 seeds instead of 10,000"),
    (
        "golden::chunks_of_any_size_and_evictions_give_the_same_ids",
        "8 prompts and 48 tokens instead of 4 and 12",
    ),
    (
        "golden::prefix::a_shared_system_prompt_is_computed_once_and_the_ids_are_those_without_the_cache",
        "8 prompts that share 400 tokens instead of 4 that share 112",
    ),
    (
        "serve::soak::under_a_mixed_load_everything_ends_is_counted_and_memory_stays_flat",
        "5 minutes instead of 12 seconds",
    ),
    ("golden::default_limits_give_the_same_ids", "8 prompts and 48 tokens instead of 2 and 12"),
    ("golden::the_kernels_for_gpus_give_the_same_ids", "8 prompts and 48 tokens instead of 1 and 4"),
    (
        "browser::the_engine_answers_in_the_tab_and_its_faults_are_told",
        "a model without room, a dropped one, a reload in mid-download, two tabs, a GPU process that dies",
    ),
    (
        "budget::predictions_stand_beside_what_is_measured",
        "each within 25% of what five turns measure, up to 12 sequences",
    ),
    (
        "what_if::a_burst_on_other_slots_comes_out_as_it_is_measured",
        "five turns of the whole bursts, within 15%",
    ),
    ("serve::clients::guidellm", "the load generator, with the 6 GB that it brings, agrees with our figures"),
];

/// Names the environment variable by which the suite knows that it is to run everything.
const FULL_VARIABLE: &str = "FIRSTLIGHT_TEST_FULL";

/// Runs everything; with `full` also what takes long.
pub fn run(full: bool) -> Result<(), String> {
    let workspace = Workspace::find()?;
    timed("formatting", || watch(&mut workspace.cargo(&["fmt", "--all", "--check"])))?;
    timed("set-up", || {
        vulkan::ensure()?;
        wasm::ensure()?;
        nginx::ensure(&workspace)?;
        workspace.fetch_crates()
    })?;
    timed("lints", || lints(&workspace))?;
    // Before the program, which has it in it.
    timed("page", || page::build(&workspace, None))?;
    timed("claims in the browser", || page::build_claims(&workspace))?;
    timed("build", || {
        workspace.build_binary()?;
        watch(&mut workspace.cargo(&["test", "--release", "--locked", "--workspace", "--no-run"]))
    })?;
    let file = timed("model", || model::ensure(&workspace))?;
    let clients = timed("clients", || {
        python::ensure_curl()?;
        python::ensure(&workspace, Environment::Clients)
    })?;
    let tools = timed("browser", || browser::ensure(&workspace))?;
    let load = match full {
        true => Some(timed("load generator", || python::ensure(&workspace, Environment::Load))?),
        false => None,
    };
    let tests = timed("tests", || {
        let mut cargo = workspace.cargo(&["test", "--release", "--locked", "--workspace", "--no-fail-fast"]);
        cargo.env("FIRSTLIGHT_MODEL_FILE", &file).envs(workspace.driver_settings());
        // The driver's own choice of threads is the one that users get.
        cargo.env_remove("LP_NUM_THREADS").env_remove(FULL_VARIABLE);
        cargo.env(python::CLIENTS_VARIABLE, &clients).envs(tools.settings(&workspace));
        if let Some(load) = &load {
            cargo.env(FULL_VARIABLE, "1").env(python::LOAD_VARIABLE, load);
        }
        watch(&mut cargo)
    });
    let archive = timed("archive", || dist::run().map(drop));
    if !full {
        say("left to `cargo xtask test --full`:");
        for (name, claim) in ONLY_IN_FULL {
            say(&format!("  {name}: {claim}"));
        }
    }
    tests.and(archive)
}

fn lints(workspace: &Workspace) -> Result<(), String> {
    let native = ["clippy", "--release", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    watch(&mut workspace.cargo(&native))?;
    // The page's profile, so that what runs while compiling is compiled once for this and the page.
    let packages = [
        "-p",
        "firstlight-shaders",
        "-p",
        "firstlight-engine",
        "-p",
        "firstlight-web",
        "--target",
        wasm::TARGET,
    ];
    let mut browser: Command = workspace.cargo(&["clippy", "--profile", "page", "--locked"]);
    watch(browser.args(packages).args(["--lib", "--examples", "--", "-D", "warnings"]))
}

fn timed<T>(name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    say(&format!("== {name}"));
    let start = Instant::now();
    let outcome = step();
    say(&format!("== {name}: {:.1} s", start.elapsed().as_secs_f64()));
    outcome
}
