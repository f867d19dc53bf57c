//! The metrics as a page in Prometheus' text format.
//!
//! The format is <https://prometheus.io/docs/instrumenting/exposition_formats/>. Invariant: each metric's head stands once,
//! before all of its series, and no series stands twice.

use std::collections::BTreeMap;
use std::fmt::Write;

use firstlight_engine::engine::EngineCounters;
use firstlight_engine::request::FinishReason;

use super::{Metrics, process};
use crate::histogram::Histogram;

/// What is read when the page is asked for.
#[derive(Clone, Debug)]
pub struct Readings<'a> {
    /// What the model is called.
    pub model: &'a str,
    /// The engine as it was after its last step.
    pub engine: EngineCounters,
    /// Tokens of every step so far.
    pub step_tokens: Histogram,
    /// Answers over HTTP by route and status.
    pub statuses: BTreeMap<(String, u16), u64>,
    /// When the server began, in Unix seconds.
    pub started: u64,
    /// Lines of the log that found no reader.
    pub log_lines_lost: u64,
    /// Spans that no collector got.
    pub spans_dropped: u64,
}

impl Metrics {
    /// The whole page.
    pub fn page(&self, now: &Readings<'_>) -> String {
        let model = format!("model=\"{}\"", escaped(now.model));
        let mut out = String::new();
        self.histograms(&mut out, &model, now);
        self.by_end_and_part(&mut out, &model);
        self.plain(&mut out, &model, now);
        about_the_server(&mut out, now);
        out
    }

    fn histograms(&self, out: &mut String, model: &str, now: &Readings<'_>) {
        let histograms = [
            (
                "time_to_first_token_seconds",
                "From the last byte of a request to its first content.",
                &self.ttft,
            ),
            ("inter_token_latency_seconds", "Between two tokens of a request.", &self.inter_token),
            (
                "request_time_per_output_token_seconds",
                "After the first token, by the tokens that followed it.",
                &self.per_token,
            ),
            ("request_queue_time_seconds", "Waiting before the first token, again included.", &self.queue),
            ("request_prefill_time_seconds", "From the last admission to the first token.", &self.prefill),
            ("request_decode_time_seconds", "From the first token to the end.", &self.decode),
            ("request_inference_time_seconds", "Prefill and decode together.", &self.inference),
            ("request_prompt_tokens", "Tokens of a prompt.", &self.prompt_tokens),
            ("request_generation_tokens", "Tokens of an answer.", &self.generation_tokens),
            (
                "request_prefill_kv_computed_tokens",
                "Rows computed for a request, without what the prefix cache had.",
                &self.computed_tokens,
            ),
            (
                "request_params_max_tokens",
                "Tokens that an answer was allowed; where nobody said, what the context left.",
                &self.max_tokens,
            ),
            ("request_params_n", "Choices that a call asked for.", &self.num_choices),
            (
                "iteration_tokens_total",
                "Tokens of a step of the engine, of prompts and answers together.",
                &now.step_tokens,
            ),
        ];
        for (name, help, histogram) in histograms {
            head(out, name, "histogram", help);
            histogram.write(out, &format!("firstlight_{name}"), model);
        }
    }

    /// Series for each way to end, and for each part of the time to the first token.
    fn by_end_and_part(&self, out: &mut String, model: &str) {
        head(out, "e2e_request_latency_seconds", "histogram", "From the last byte of a request to its end.");
        for (reason, ended) in FinishReason::ALL.iter().zip(&self.ended) {
            let labels = format!("{model},finished_reason=\"{}\"", reason.name());
            ended.e2e.write(out, "firstlight_e2e_request_latency_seconds", &labels);
        }
        head(out, "request_success_total", "counter", "Requests that ended, by how they did.");
        for (reason, ended) in FinishReason::ALL.iter().zip(&self.ended) {
            let labels = format!("{model},finished_reason=\"{}\"", reason.name());
            let _ = writeln!(out, "firstlight_request_success_total{{{labels}}} {}", ended.count);
        }
        head(out, "ttft_part_seconds", "histogram", "Where the time to the first token went, part by part.");
        for (part, histogram) in &self.parts {
            let labels = format!("{model},part=\"{part}\"");
            histogram.write(out, "firstlight_ttft_part_seconds", &labels);
        }
    }

    /// Series of one value.
    fn plain(&self, out: &mut String, model: &str, readings: &Readings<'_>) {
        let now = &readings.engine;
        let series = [
            ("num_requests_running", "gauge", "Sequences in the batch.", now.running.to_string()),
            ("num_requests_waiting", "gauge", "Sequences in inbox and queue.", now.waiting.to_string()),
            ("kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.", now.kv_cache_usage().to_string()),
            ("num_preemptions_total", "counter", "Evictions.", now.preemptions_total.to_string()),
            (
                "prefix_cache_queries_total",
                "counter",
                "Prompt tokens looked up, each request once.",
                now.prefix_queries_total.to_string(),
            ),
            (
                "prefix_cache_hits_total",
                "counter",
                "Those that were found.",
                now.prefix_hits_total.to_string(),
            ),
            (
                "prompt_tokens_total",
                "counter",
                "Prompt tokens of admitted requests.",
                now.prompt_tokens_total.to_string(),
            ),
            (
                "generation_tokens_total",
                "counter",
                "Tokens sampled.",
                now.generation_tokens_total.to_string(),
            ),
            (
                "surplus_tokens_total",
                "counter",
                "Tokens computed ahead for requests that had ended by then.",
                now.surplus_tokens_total.to_string(),
            ),
            ("engine_steps_total", "counter", "Steps of the engine.", now.steps_total.to_string()),
            (
                "tokens_after_disconnect_total",
                "counter",
                "Tokens sampled after the client had gone.",
                self.after_disconnect.to_string(),
            ),
            ("timelines_broken_total", "counter", "Timelines that break a rule.", self.broken.to_string()),
        ];
        for (name, kind, help, value) in series {
            head(out, name, kind, help);
            let _ = writeln!(out, "firstlight_{name}{{{model}}} {value}");
        }
    }
}

/// What is the server's, and no model's.
fn about_the_server(out: &mut String, now: &Readings<'_>) {
    head(out, "http_requests_total", "counter", "Answers over HTTP.");
    for ((route, status), count) in &now.statuses {
        let labels = format!("route=\"{}\",status=\"{status}\"", escaped(route));
        let _ = writeln!(out, "firstlight_http_requests_total{{{labels}}} {count}");
    }
    head(out, "otlp_dropped_total", "counter", "What no collector got.");
    let _ = writeln!(out, "firstlight_otlp_dropped_total{{signal=\"traces\"}} {}", now.spans_dropped);
    head(out, "log_lines_lost_total", "counter", "Lines of the log that found no reader.");
    let _ = writeln!(out, "firstlight_log_lines_lost_total {}", now.log_lines_lost);
    head(out, "build_info", "gauge", "Always 1; its labels say what runs here.");
    let version = env!("CARGO_PKG_VERSION");
    let _ =
        writeln!(out, "firstlight_build_info{{version=\"{version}\",model=\"{}\"}} 1", escaped(now.model));
    let own = ("process_start_time_seconds", "gauge", "When the process began, in Unix time.", now.started);
    for (name, kind, help, value) in [own].into_iter().chain(process::readings()) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP firstlight_{name} {help}\n# TYPE firstlight_{name} {kind}");
}

/// A label's value: what the format's grammar asks for.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
