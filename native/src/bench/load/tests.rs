//! Loads from flags, and what is refused before anything is sent.

use firstlight_engine::sched::PRIORITY_STEP_NS;

use super::*;
use crate::cli::{Command, Parsed, parse};

fn args(flags: &str) -> BenchArgs {
    let words = ["firstlight", "bench"].into_iter().chain(flags.split_whitespace()).map(Into::into);
    let parsed = parse(words).unwrap_or_else(|failure| panic!("{flags}: {failure}"));
    let Parsed::Command(cli) = parsed else { panic!("{flags} is no command line") };
    let Command::Bench(args) = cli.command else { panic!("{flags} is not bench") };
    *args
}

fn check(flags: &str, expected: Result<(&str, Option<u32>, usize), &str>) {
    match (Load::of(&args(flags)), expected) {
        (Ok(load), Ok(expected)) => {
            let got = (load.name, load.slots, load.requests().count());
            assert_eq!(got, expected, "{flags}");
        }
        (Err(failure), Err(part)) => assert!(failure.sentence.contains(part), "{flags}: {failure}"),
        (got, expected) => panic!("{flags}: {got:?} where {expected:?} was expected"),
    }
}

#[test]
fn a_load_is_what_the_flags_name() {
    check("", Ok(("alone", None, 4)));
    check("--scenario alone --requests 2 --slots 3", Ok(("alone", None, 2)));
    check("--scenario burst-8x2", Ok(("burst-8x2", Some(2), 8)));
    check("--scenario burst-8x4 --slots 4", Ok(("burst-8x4", Some(4), 8)));
    check("--scenario staggered-6x2", Ok(("staggered-6x2", Some(2), 6)));
    check("--scenario contexts --requests 3", Ok(("contexts", Some(4), 9)));
    check("--rate 2.5", Ok(("rate", None, 32)));
    check("--concurrency 3 --requests 7", Ok(("concurrency", None, 7)));
}

#[test]
fn flags_that_contradict_each_other_are_told() {
    check("--scenario burst-8x2 --slots 3", Err("--slots is 3 and --scenario burst-8x2 runs on 2"));
    check("--scenario contexts --prefix-cache off", Err("--prefix-cache is off"));
    check("--rate 1 --trace-shrink 2", Err("--trace-shrink does nothing without --trace"));
    check("--trace x.csv --prompt-tokens 3", Err("--prompt-tokens does nothing with --trace"));
    check("--shared-tokens 64", Err("--shared-tokens is 64 and --prompt-tokens is 64"));
    check("--rate 1e-9", Err("hours"));
    check("--rate 1e-300", Err("hours"));
    check("--rate 1e300", Ok(("rate", None, 32)));
    check("--concurrency 1 --requests 1000000", Err("prompt tokens over all repeats"));
    check("--requests 100 --output-tokens 1000000 --prompt-tokens 1", Err("output tokens over all"));
    check(
        "--concurrency 1 --requests 40000 --prompt-tokens 1 --output-tokens 1",
        Err("120000 requests over all"),
    );
    check("--trace /nowhere/t.csv", Err("/nowhere/t.csv cannot be read"));
}

#[test]
fn arrivals_of_an_open_loop_are_the_seed_and_the_rate() {
    let arrivals = |flags: &str| -> Vec<Nanos> {
        let load = Load::of(&args(flags)).unwrap();
        load.requests().map(|request| request.arrival_ns).collect()
    };
    let slow = arrivals("--rate 4 --requests 2000 --seed 7 --prompt-tokens 1");
    assert_eq!(slow, arrivals("--rate 4 --requests 2000 --seed 7 --prompt-tokens 1"));
    assert_ne!(slow, arrivals("--rate 4 --requests 2000 --seed 8 --prompt-tokens 1"));
    assert_eq!(slow[0], 0, "the first one starts the clock");
    assert!(slow.is_sorted());
    let mean = slow[1999] as f64 / 1e9 / 1999.0;
    assert!((mean - 0.25).abs() < 0.02, "{mean} s between arrivals at 4 a second");
    let staggered = arrivals("--scenario staggered-6x2");
    assert_eq!(staggered, [0, SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND, 5 * SECOND]);
}

fn replayed(flags: &str) -> Result<Vec<(Nanos, u32, u32)>, Failure> {
    let text = "arrival_s,prompt_tokens,output_tokens\n10,100,20\n12,7,0\n15,33,8\n";
    let rows = trace_csv::parse(text, "t.csv").unwrap();
    let load = replay(&args(&format!("--trace t.csv {flags}")), Path::new("t.csv"), &rows)?;
    Ok(load.requests().map(|r| (r.arrival_ns, r.prompt_tokens, r.output_tokens)).collect())
}

#[test]
fn a_trace_is_scaled_and_cut() {
    assert_eq!(replayed("").unwrap(), [(0, 100, 20), (2 * SECOND, 7, 1), (5 * SECOND, 33, 8)]);
    let scaled = replayed("--trace-shrink 16 --trace-speed 4").unwrap();
    assert_eq!(scaled, [(0, 6, 1), (SECOND / 2, 1, 1), (SECOND * 5 / 4, 2, 1)]);
    assert_eq!(replayed("--trace-skip 1 --requests 1").unwrap(), [(0, 7, 1)]);
    for flags in ["--trace-skip 3", "--requests 4", "--trace-skip 1 --requests 3"] {
        let sentence = replayed(flags).unwrap_err().sentence;
        assert!(sentence.contains("t.csv has 3 requests"), "{flags}: {sentence}");
    }
}

fn check_fit(flags: &str, expected: Option<&str>) {
    let limits = SchedulerConfig {
        max_num_seqs: 2,
        max_batch_tokens: 64,
        block_size: 16,
        num_blocks: 8,
        max_model_len: 256,
        max_waiting: 8,
        vocab_size: 100,
        prefix_cache: true,
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    };
    let got = Load::of(&args(flags)).unwrap().check_fit(&limits, "shorten it").err();
    match (got, expected) {
        (None, None) => {}
        (Some(failure), Some(part)) => assert!(failure.sentence.contains(part), "{flags}: {failure}"),
        (got, expected) => panic!("{flags}: {got:?} where {expected:?} was expected"),
    }
}

#[test]
fn what_is_too_long_is_told_before_it_is_sent() {
    check_fit("--prompt-tokens 97 --output-tokens 32", None);
    check_fit("--prompt-tokens 98 --output-tokens 32", Some("needs 9 KV blocks and the pool has 8"));
    check_fit("--prompt-tokens 250 --output-tokens 7", Some("longer than the context of 256 tokens"));
    check_fit("--prompt-tokens 1000000 --requests 1 --repeats 1", Some("1000000 prompt and 32 output"));
}
