//! The house rules, kept by reading the source: who may import whom, and what nobody may write.
//!
//! Each rule is shown to fail on a small made-up file as well as to hold on the real ones.

use std::path::{Path, PathBuf};

/// One file of the checkout.
struct Source {
    /// From the workspace's root, with `/`.
    path: String,
    /// As it is.
    text: String,
    /// Rust without comments, without the insides of strings, without `#[cfg(test)]` modules; other files: empty.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        // A module of tests in a file of its own counts as tests, like one inside a file.
        let production = path.ends_with(".rs") && !path.ends_with("/tests.rs");
        let code = if production { without_tests(&bare_code(text)) } else { String::new() };
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn within(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }

    /// Whether the code names this identifier.
    fn names(&self, word: &str) -> bool {
        let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
        self.code.match_indices(word).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            let after = self.code[at + word.len()..].chars().next();
            !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
        })
    }

    /// Whether the code has a path that starts `root::module`, in a `use` with braces too.
    fn reaches(&self, root: &str, module: &str) -> bool {
        let start = format!("{root}::");
        let ident = |text: &str| -> String {
            text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        };
        self.code.match_indices(&start).any(|(at, _)| {
            let rest = &self.code[at + start.len()..];
            match rest.strip_prefix('{') {
                Some(group) => top_level_items(group).iter().any(|item| ident(item) == module),
                None => ident(rest) == module,
            }
        })
    }
}

/// The comma-separated items of a brace group, up to the brace that closes it.
fn top_level_items(group: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&group[start..at]);
                return items;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// Rust source without comments and without the insides of strings and characters.
fn bare_code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut out, mut i) = (String::new(), 0);
    while i < chars.len() {
        let word_before = out.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            'r' if !word_before && (at(i + 1) == '"' || (at(i + 1) == '#' && "\"#".contains(at(i + 2)))) => {
                let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
                i += hashes + 2;
                let closes = |i: usize| at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                while i < chars.len() && !closes(i) {
                    i += 1;
                }
                i += hashes + 1;
                out.push_str("\"\"");
            }
            quote @ ('"' | '\'') if quote == '"' || at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += 1;
                while i < chars.len() && at(i) != quote {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
                out.extend([quote, quote]);
            }
            c => {
                out.push(c);
                i += 1;
            }
        }
    }
    out
}

/// Bare code without its test modules.
fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut out = String::new();
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(open) = rest.find(['{', ';']) else { break };
        let mut depth = 0;
        let end = rest[open..].char_indices().find_map(|(i, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0).then_some(open + i + 1)
        });
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    out + rest
}

/// A rule: its name, and what it finds wrong with a file.
struct Rule {
    name: &'static str,
    broken: fn(&Source) -> Option<String>,
}

fn first_named(file: &Source, words: &[&str]) -> Option<String> {
    words.iter().find(|word| file.names(word)).map(|word| format!("names {word}"))
}

fn first_reached(file: &Source, root: &str, modules: &[&str]) -> Option<String> {
    modules.iter().find(|module| file.reaches(root, module)).map(|module| format!("uses {root}::{module}"))
}

const RULES: &[Rule] = &[
    Rule {
        name: "the scheduler is pure",
        broken: |file| {
            if !file.within("engine/src/sched/") {
                return None;
            }
            first_named(file, &["wgpu", "async", "await"]).or_else(|| {
                first_reached(file, "crate", &["gpu", "text", "model", "runner", "engine"])
                    .or_else(|| first_reached(file, "super", &["super"]))
            })
        },
    },
    Rule {
        name: "a report is folded over timelines alone",
        broken: |file| {
            if !file.within("engine/src/report/") && file.path != "engine/src/report.rs" {
                return None;
            }
            let above = ["artifact", "engine", "gpu", "model", "runner", "sampling", "sched", "text"];
            first_named(file, &["wgpu", "async", "await", "Clock"])
                .or_else(|| first_reached(file, "crate", &above))
        },
    },
    Rule {
        name: "the gpu has no idea of requests",
        broken: |file| {
            let modules = ["sched", "request", "engine", "text", "timeline", "runner"];
            let inside = file.within("engine/src/gpu/");
            inside.then(|| first_reached(file, "crate", &modules)).flatten()
        },
    },
    Rule {
        name: "the leaves know none of those who use them",
        broken: |file| {
            let leaves = ["request.rs", "clock.rs", "error.rs", "policy.rs", "policy/"];
            let is_leaf = leaves.iter().any(|leaf| file.within(&format!("engine/src/{leaf}")));
            let users = ["text", "sched", "gpu", "model", "runner", "engine", "report"];
            is_leaf.then(|| first_reached(file, "crate", &users)).flatten()
        },
    },
    Rule {
        name: "text and model know nothing of scheduling",
        broken: |file| {
            if file.within("engine/src/text/") {
                return first_reached(file, "crate", &["sched", "gpu", "runner", "engine"]);
            }
            file.within("engine/src/model/")
                .then(|| first_reached(file, "crate", &["sched", "runner", "engine", "text"]))
                .flatten()
        },
    },
    Rule {
        name: "only gpu names wgpu in the engine",
        broken: |file| {
            let outside = file.within("engine/src/") && !file.within("engine/src/gpu/");
            outside.then(|| first_named(file, &["wgpu"])).flatten()
        },
    },
    Rule {
        name: "the engine has no files, sockets, threads or wall clock",
        broken: |file| {
            if !file.within("engine/") || !file.is_rust() {
                return None;
            }
            first_reached(file, "std", &["fs", "net", "thread", "process", "env"])
                .or_else(|| first_named(file, &["Instant", "SystemTime"]))
        },
    },
    Rule {
        name: "engine and shaders are the same on every architecture",
        broken: |file| {
            let shared = file.within("engine/") || file.within("shaders/");
            shared.then(|| first_named(file, &["target_arch", "target_family", "target_os"])).flatten()
        },
    },
    Rule {
        name: "shaders know neither wgpu nor async",
        broken: |file| {
            file.within("shaders/").then(|| first_named(file, &["wgpu", "async", "await"])).flatten()
        },
    },
    Rule {
        name: "no WGSL in Rust strings",
        broken: |file| {
            let ours = file.is_rust() && !file.within("tests/");
            (ours && file.text.contains("@workgroup_size(")).then(|| "holds a kernel".to_owned())
        },
    },
    Rule {
        name: "nothing unfinished, nothing unwrapped",
        broken: |file| {
            if file.within("tests/") {
                return None;
            }
            let unwrapped = file.code.contains(".unwrap()").then(|| "calls unwrap()".to_owned());
            unwrapped.or_else(|| {
                let macros = ["todo!", "unimplemented!", "dbg!"];
                macros.iter().find(|name| file.code.contains(*name)).map(|name| format!("has {name}"))
            })
        },
    },
    Rule {
        name: "no test is ignored or sleeps",
        broken: |file| {
            let code = bare_code(&file.text);
            if file.is_rust() && code.contains("#[ignore") {
                return Some("ignores a test".into());
            }
            (file.within("tests/") && code.contains("thread::sleep")).then(|| "sleeps".into())
        },
    },
    Rule { name: "no unsafe code", broken: |file| first_named(file, &["unsafe"]) },
    Rule {
        name: "a file is at most 600 lines",
        broken: |file| {
            let counted = file.is_rust() || file.path.ends_with(".wgsl");
            let lines = file.text.lines().count();
            (counted && lines > 600).then(|| format!("has {lines} lines"))
        },
    },
    Rule {
        name: "a file says what it is",
        broken: |file| {
            (file.is_rust() && !file.text.starts_with("//!")).then(|| "does not begin with //!".into())
        },
    },
    Rule {
        name: "no machine's paths, no registry's hosts",
        broken: |file| {
            // Written in halves, so that this file keeps its own rule.
            const WORDS: &[&str] = &[
                concat!("/wo", "rk/"),
                concat!("/ro", "ot/"),
                concat!("crates", ".io"),
                concat!("pypi", ".org"),
                concat!("python", "hosted"),
                concat!("npmjs", ".org"),
                concat!("debian", ".org"),
                concat!("static.", "rust-lang"),
            ];
            let machine_made = file.path.ends_with("Cargo.lock") || file.path.ends_with(".json");
            let found = WORDS.iter().find(|word| !machine_made && file.text.contains(*word));
            found.map(|word| format!("names {word}"))
        },
    },
    Rule {
        name: "a dependency's version stands in the workspace",
        broken: |file| {
            let member = file.path.ends_with("/Cargo.toml");
            let section = |text: &str| -> Option<String> {
                let after = text.split_once("dependencies]\n")?.1;
                let lines = after.lines().take_while(|line| !line.starts_with('['));
                let own = |line: &&str| line.contains('=') && !line.contains("workspace");
                lines.into_iter().find(own).map(|line| format!("pins {line}"))
            };
            member.then(|| section(&file.text)).flatten()
        },
    },
    Rule {
        name: "xtask and the lower crates depend on nothing above them",
        broken: |file| {
            let above: &[&str] = match file.path.as_str() {
                "xtask/Cargo.toml" => &["firstlight"],
                "shaders/Cargo.toml" => &["firstlight-engine", "firstlight.", "wgpu"],
                "engine/Cargo.toml" => &["firstlight.", "firstlight-web"],
                _ => return None,
            };
            let dependencies = file.text.split_once("[dependencies]")?.1;
            above.iter().find(|name| dependencies.contains(*name)).map(|name| format!("depends on {name}"))
        },
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn collect(folder: &Path, prefix: &str, out: &mut Vec<Source>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().expect("a listed entry has a type");
        if kind.is_dir() && !["target", ".git", "golden", "dist", "node_modules"].contains(&name.as_str()) {
            collect(&entry.path(), &format!("{path}/"), out);
        }
        let text_file = [".rs", ".wgsl", ".toml", ".md", ".lock", ".sh", ".yml", "/run"];
        if kind.is_file() && text_file.iter().any(|ending| path.ends_with(ending)) {
            let text = std::fs::read_to_string(entry.path())
                .unwrap_or_else(|error| panic!("{path} is no readable text: {error}"));
            out.push(Source::new(&path, &text));
        }
    }
}

fn checkout() -> Vec<Source> {
    let mut files = Vec::new();
    collect(&root(), "", &mut files);
    files
}

#[test]
fn the_checkout_keeps_every_rule() {
    let files = checkout();
    assert!(files.len() > 30, "only {} files were found: the walk is broken", files.len());
    let mut broken = Vec::new();
    for rule in RULES {
        for file in &files {
            broken.extend((rule.broken)(file).map(|what| format!("{}: {} ({})", file.path, what, rule.name)));
        }
    }
    broken.extend(kernels_without_twin(&files));
    assert!(broken.is_empty(), "{} breaches:\n{}", broken.len(), broken.join("\n"));
}

/// A kernel is two files side by side; a variant (`x_lanes.wgsl`) shares the twin of `x`. Snippets have no entry point
/// and no twin.
fn kernels_without_twin(files: &[Source]) -> Vec<String> {
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let has_twin = |stem: &str| {
        let shorter = stem.match_indices('_').map(|(at, _)| &stem[..at]);
        shorter.chain([stem]).any(|stem| names.contains(&format!("{stem}.rs").as_str()))
    };
    let kernels = names.iter().filter(|path| path.starts_with("shaders/") && !path.contains("/common/"));
    let stems = kernels.filter_map(|path| path.strip_suffix(".wgsl"));
    stems.filter(|stem| !has_twin(stem)).map(|stem| format!("{stem}.wgsl has no {stem}.rs")).collect()
}

fn check(rule: &str, path: &str, text: &str, expected: Option<&str>) {
    let rule = RULES.iter().find(|known| known.name == rule).unwrap_or_else(|| panic!("no rule {rule:?}"));
    let got = (rule.broken)(&Source::new(path, text));
    assert_eq!(got.as_deref(), expected, "{} on {path}: {text}", rule.name);
}

#[test]
fn every_rule_can_fail() {
    let sched = "engine/src/sched/x.rs";
    check("the scheduler is pure", sched, "use crate::{error, gpu::Device};", Some("uses crate::gpu"));
    check("the scheduler is pure", sched, "async fn f() {}", Some("names async"));
    check("the scheduler is pure", sched, "use super::super::text;", Some("uses super::super"));
    check("the scheduler is pure", sched, "// never async\nuse crate::{request::{A, B}};", None);
    check("the scheduler is pure", "engine/src/engine.rs", "async fn f() {}", None);
    let leaves = "the leaves know none of those who use them";
    check(leaves, "engine/src/request.rs", "use crate::text::Tokenizer;", Some("uses crate::text"));
    check(leaves, "engine/src/policy/screen.rs", "use crate::engine::Engine;", Some("uses crate::engine"));
    check(leaves, "engine/src/request.rs", "use crate::policy::ContentPolicy;", None);
    check(leaves, "engine/src/runner.rs", "use crate::engine::Engine;", None);
    let report = "a report is folded over timelines alone";
    check(report, "engine/src/report/x.rs", "use crate::{clock, sched::Batch};", Some("uses crate::sched"));
    check(report, "engine/src/report.rs", "use crate::engine::Engine;", Some("uses crate::engine"));
    check(report, "engine/src/report/x.rs", "fn f(c: &impl Clock) {}", Some("names Clock"));
    check(report, "engine/src/report/x.rs", "use crate::{clock::Nanos, request, timeline};", None);
    check(report, "engine/src/timeline/x.rs", "use crate::clock::Clock;", None);
    let gpu = "engine/src/gpu/x.rs";
    check(
        "the gpu has no idea of requests",
        gpu,
        "fn f(b: &crate::sched::Batch) {}",
        Some("uses crate::sched"),
    );
    check("the gpu has no idea of requests", gpu, "use crate::error::DeviceError;", None);
    check("the gpu has no idea of requests", gpu, "use crate::error::RunnerError;", None);
    check(
        "the gpu has no idea of requests",
        gpu,
        "use crate::runner::GpuRunner;",
        Some("uses crate::runner"),
    );
    let pure = "text and model know nothing of scheduling";
    check(pure, "engine/src/text/x.rs", "use crate::gpu::Device;", Some("uses crate::gpu"));
    check(pure, "engine/src/model/x.rs", "use crate::sched::Batch;", Some("uses crate::sched"));
    check(
        "only gpu names wgpu in the engine",
        "engine/src/model/x.rs",
        "use wgpu::Queue;",
        Some("names wgpu"),
    );
    check("only gpu names wgpu in the engine", "engine/src/model/x.rs", "//! never wgpu", None);
    let hostless = "the engine has no files, sockets, threads or wall clock";
    check(hostless, "engine/src/a.rs", "use std::{cell::Cell, fs};", Some("uses std::fs"));
    check(hostless, "engine/src/a.rs", "std::thread::yield_now()", Some("uses std::thread"));
    check(hostless, "engine/src/a.rs", "use std::time::Instant;", Some("names Instant"));
    check(hostless, "engine/src/a.rs", "use std::{fmt, sync::Arc}; struct InstantLike;", None);
    let everywhere = "engine and shaders are the same on every architecture";
    check(everywhere, "shaders/x.rs", "#[cfg(target_arch = \"wasm32\")]", Some("names target_arch"));
    check("shaders know neither wgpu nor async", "shaders/x.rs", "x.await", Some("names await"));
    check("no WGSL in Rust strings", "engine/src/a.rs", "\"@workgroup_size(64)\"", Some("holds a kernel"));
}

#[test]
fn every_rule_of_style_can_fail() {
    let finished = "nothing unfinished, nothing unwrapped";
    check(finished, "native/src/x.rs", "fn f() { g().unwrap() }", Some("calls unwrap()"));
    check(finished, "native/src/x.rs", "fn f() { todo!() }", Some("has todo!"));
    check(finished, "native/src/x.rs", "#[cfg(test)]\nmod tests { fn f() { g().unwrap() } }", None);
    check(finished, "native/src/x/tests.rs", "fn f() { g().unwrap() }", None);
    check(
        finished,
        "native/src/x.rs",
        "#[cfg(test)] mod tests { {} } fn f() { g().unwrap() }",
        Some("calls unwrap()"),
    );
    check(finished, "native/src/x.rs", "const S: &str = r#\"x.unwrap()\"#; // .unwrap()", None);
    check("no test is ignored or sleeps", "engine/src/x.rs", "#[ignore = \"slow\"]", Some("ignores a test"));
    check("no test is ignored or sleeps", "tests/tests/x.rs", "std::thread::sleep(d)", Some("sleeps"));
    check(
        "no unsafe code",
        "native/src/x.rs",
        "fn f<'a>(c: char) { let q = '\"'; unsafe {} }",
        Some("names unsafe"),
    );
    check("no unsafe code", "native/src/x.rs", "/* unsafe /* */ unsafe */ #![forbid(unsafe_code)]", None);
    check("a file is at most 600 lines", "shaders/x.wgsl", &"\n".repeat(601), Some("has 601 lines"));
    check("a file says what it is", "native/src/x.rs", "fn f() {}", Some("does not begin with //!"));
    let home = concat!("/ro", "ot/");
    let place = "no machine's paths, no registry's hosts";
    check(place, "README.md", &format!("see {home}x"), Some(&format!("names {home}")));
    check(place, "README.md", "see target/release", None);
    let pinned = "a dependency's version stands in the workspace";
    check(pinned, "native/Cargo.toml", "[dependencies]\nx = \"1\"\n[lints]\n", Some("pins x = \"1\""));
    check(pinned, "native/Cargo.toml", "[dependencies]\nx.workspace = true\n[lints]\ny = 1\n", None);
    let below = "xtask and the lower crates depend on nothing above them";
    check(
        below,
        "xtask/Cargo.toml",
        "[dependencies]\nfirstlight.workspace = true",
        Some("depends on firstlight"),
    );
    check(below, "engine/Cargo.toml", "[dependencies]\nfirstlight-shaders.workspace = true", None);
    let alone = ["shaders/x.wgsl", "shaders/common/y.wgsl", "shaders/z.rs", "shaders/z_lanes.wgsl"]
        .map(|path| Source::new(path, ""));
    assert_eq!(kernels_without_twin(&alone), ["shaders/x.wgsl has no shaders/x.rs"]);
}
