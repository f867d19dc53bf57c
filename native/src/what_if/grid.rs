//! The settings that a load is replayed under: every combination of the lists that were given.
//!
//! Pure. Invariant: every setting is valid, and no two are alike.

use firstlight_engine::sched::SchedulerConfig;

use crate::cli::{Switch, Urgent, WhatIfArgs};
use crate::failure::Failure;

/// The most rows of a table.
const MAX_SETTINGS: usize = 64;

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Short, for a table.
    pub label: String,
    /// The scheduler's limits.
    pub limits: SchedulerConfig,
    /// Who goes first.
    pub urgent: Urgent,
}

impl Setting {
    /// As it was recorded.
    pub fn recorded(limits: &SchedulerConfig) -> Self {
        let label = counted(limits.max_num_seqs, "slot");
        Self { label, limits: *limits, urgent: Urgent::default() }
    }

    /// Whether the two differ in nothing but their label.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.limits, self.urgent) == (other.limits, other.urgent)
    }
}

/// One dimension: what of a setting it sets, and in which words it stands in a label where others stand beside it.
struct Axis<'a> {
    values: Vec<Change<'a>>,
}

struct Change<'a> {
    words: String,
    short: String,
    apply: Box<dyn Fn(&mut Setting) + 'a>,
}

fn axis<'a, T: Copy + 'a>(
    values: impl IntoIterator<Item = T>,
    words: impl Fn(T) -> (String, String),
    apply: impl Fn(&mut Setting, T) + Copy + 'a,
) -> Axis<'a> {
    let change = |value: T| {
        let (words, short) = words(value);
        Change { words, short, apply: Box::new(move |setting: &mut Setting| apply(setting, value)) }
    };
    Axis { values: values.into_iter().map(change).collect() }
}

/// All settings that `args` ask for; what they do not name is as in `recorded`.
///
/// # Errors
/// Too many, or one that leaves no room for a token.
pub fn settings(args: &WhatIfArgs, recorded: &SchedulerConfig) -> Result<Vec<Setting>, Failure> {
    let block_bytes = u64::from(args.kv_bytes_a_token) * u64::from(recorded.block_size);
    if let Some(bytes) = args.kv_memory.iter().find(|bytes| **bytes < block_bytes) {
        return Err(Failure::usage(format!(
            "--kv-memory is {bytes} bytes and one block of {} tokens takes {block_bytes}; give at least that",
            recorded.block_size
        )));
    }
    let blocks_of = |bytes: &u64| u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX);
    let blocks = args.kv_blocks.iter().copied().chain(args.kv_memory.iter().map(blocks_of));
    let on_off = |is_on: bool| if is_on { "on" } else { "off" };
    let axes = [
        axis(
            args.slots.iter().copied(),
            |n| (counted(n, "slot"), format!("{n}s")),
            |setting, slots| setting.limits.max_num_seqs = slots,
        ),
        axis(
            args.batch_tokens.iter().copied(),
            |n| (counted(n, "token"), format!("{n}t")),
            |setting, tokens| setting.limits.max_batch_tokens = tokens,
        ),
        axis(
            blocks,
            |n| (counted(n, "block"), format!("{n}b")),
            |setting, blocks| setting.limits.num_blocks = blocks,
        ),
        axis(
            args.prefix_cache.iter().copied().map(Switch::is_on),
            |is_on| (format!("cache {}", on_off(is_on)), on_off(is_on).to_owned()),
            |setting, is_on| setting.limits.prefix_cache = is_on,
        ),
        axis(args.priorities.iter().copied(), urgent_words, |setting, urgent| setting.urgent = urgent),
    ];
    let count = axes.iter().map(|axis| axis.values.len().max(1)).try_fold(1usize, usize::checked_mul);
    if count.is_none_or(|count| count > MAX_SETTINGS) {
        return Err(Failure::usage(format!(
            "these lists make more than {MAX_SETTINGS} combinations; give shorter ones"
        )));
    }
    let given = || axes.iter().filter(|axis| !axis.values.is_empty());
    let varied = axes.iter().filter(|axis| axis.values.len() > 1).count();
    let start = Setting { label: String::new(), ..Setting::recorded(recorded) };
    let mut settings = vec![start];
    for axis in given() {
        let is_told = varied == 0 || axis.values.len() > 1;
        settings = settings.iter().flat_map(|setting| combined(setting, axis, is_told, varied > 2)).collect();
    }
    if given().next().is_none() {
        settings = vec![Setting::recorded(recorded)];
    }
    let mut distinct: Vec<Setting> = Vec::new();
    for setting in settings {
        setting.limits.validate()?;
        if !distinct.iter().any(|known| known.is_same(&setting)) {
            distinct.push(setting);
        }
    }
    Ok(distinct)
}

/// `setting` with each value of `axis`, which the label tells where `is_told`; shortly where much is told.
fn combined(setting: &Setting, axis: &Axis<'_>, is_told: bool, is_short: bool) -> Vec<Setting> {
    let with = |change: &Change<'_>| {
        let mut setting = setting.clone();
        let (between, words) = if is_short { (" ", &change.short) } else { (", ", &change.words) };
        if is_told && !setting.label.is_empty() {
            setting.label.push_str(between);
        }
        if is_told {
            setting.label.push_str(words);
        }
        (change.apply)(&mut setting);
        setting
    };
    axis.values.iter().map(with).collect()
}

fn counted(count: u32, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn urgent_words(urgent: Urgent) -> (String, String) {
    match urgent.below {
        0 => ("unranked".into(), "none".into()),
        below => (format!("<{below} at {}", urgent.priority), format!("<{below}:{}", urgent.priority)),
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::sched::PRIORITY_STEP_NS;

    use super::*;
    use crate::cli::{Command, Parsed, parse};

    const RECORDED: SchedulerConfig = SchedulerConfig {
        max_num_seqs: 2,
        max_batch_tokens: 256,
        block_size: 16,
        num_blocks: 512,
        max_model_len: 8192,
        max_waiting: 1024,
        vocab_size: 1,
        prefix_cache: true,
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    };

    fn check(flags: &str, expected: Result<&[&str], &str>) {
        let words = ["firstlight", "what-if", "--trace", "t"].into_iter().chain(flags.split_whitespace());
        let parsed = parse(words.map(Into::into)).unwrap();
        let Parsed::Command(cli) = parsed else { panic!("{flags} is no command line") };
        let Command::WhatIf(args) = cli.command else { panic!("{flags} is not what-if") };
        match (settings(&args, &RECORDED), expected) {
            (Ok(settings), Ok(expected)) => {
                let labels: Vec<&str> = settings.iter().map(|setting| setting.label.as_str()).collect();
                assert_eq!(labels, expected, "{flags}");
            }
            (Err(failure), Err(part)) => assert!(failure.sentence.contains(part), "{flags}: {failure}"),
            (got, expected) => panic!("{flags}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn lists_make_a_setting_for_each_combination() {
        check("", Ok(&["2 slots"]));
        check("--slots 2,4,4,8", Ok(&["2 slots", "4 slots", "8 slots"]));
        check("--slots 2,4 --kv-blocks 9", Ok(&["2 slots", "4 slots"]));
        check("--kv-memory 8MiB", Ok(&["22 blocks"]));
        check("--prefix-cache on,off", Ok(&["cache on", "cache off"]));
        check("--priorities none,64:-5", Ok(&["unranked", "<64 at -5"]));
        check("--slots 4 --prefix-cache off", Ok(&["4 slots, cache off"]));
        let eight = ["2s 64t on", "2s 64t off", "2s 9t on", "2s 9t off", "4s 64t on", "4s 64t off"];
        let eight = [&eight[..], &["4s 9t on", "4s 9t off"]].concat();
        check("--slots 2,4 --batch-tokens 64,9 --prefix-cache on,off", Ok(&eight));
        check("--kv-memory 1000", Err("one block of 16 tokens takes 368640"));
        let many: Vec<String> = (1..=65).map(|n: u32| n.to_string()).collect();
        check(&format!("--slots {}", many.join(",")), Err("more than 64 combinations"));
        check("--kv-blocks 16777216 --slots 1", Ok(&["1 slot, 16777216 blocks"]));
    }
}
