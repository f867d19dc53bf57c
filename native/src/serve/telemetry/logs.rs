//! The server's log: one line for each thing that happens, as text or as JSON, on stderr.
//!
//! Never a prompt and never an answer. Invariant: whoever logs does not wait for whoever reads.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, Layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::cli::LogFormat;
use crate::failure::Failure;
use crate::terminal::{self, NOTE};

/// Sets up the process's log: what `level` lets through, in `format`, and always the sentence that ends the command.
///
/// # Errors
/// The system gives no thread, or the process has a log already.
pub fn start(format: LogFormat, level: &Targets) -> Result<(), Failure> {
    let lines = terminal::start_log(format == LogFormat::Json)?;
    let filtered = Registry::default().with(with_failures(level));
    let set = match format {
        LogFormat::Text => {
            let layer = Layer::default().with_ansi(false).event_format(Text(Format::default()));
            tracing::subscriber::set_global_default(filtered.with(layer.with_writer(move || lines)))
        }
        LogFormat::Json => {
            let layer =
                Layer::default().json().flatten_event(true).with_current_span(false).with_span_list(false);
            tracing::subscriber::set_global_default(filtered.with(layer.with_writer(move || lines)))
        }
    };
    set.map_err(|error| Failure::failed(format!("there is a log already: {error}; report this defect")))?;
    log_panics();
    Ok(())
}

/// Only [`terminal::fail`] tells errors as notes: whoever reads the exit code finds its reason, whatever is logged beside.
fn with_failures(level: &Targets) -> Targets {
    match level.would_enable(NOTE, &Level::ERROR) {
        true => level.clone(),
        false => level.clone().with_target(NOTE, Level::ERROR),
    }
}

/// A panic is a line like any other, so that a log for programs has nothing else in it.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let backtrace = (backtrace.status() == std::backtrace::BacktraceStatus::Captured)
            .then(|| tracing::field::display(backtrace));
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("?"), backtrace, "{panic}");
        // The end of the main thread is the end of the process.
        if thread.name() == Some("main") {
            terminal::settle();
        }
    }));
}

/// Lines with time, level and fields; but notes are the sentences that they are, so that scripts hear them as they hear
/// those of any other command.
struct Text(Format<Full>);

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != NOTE {
            return self.0.format_event(context, writer, event);
        }
        let mut sentence = Sentence(String::new());
        event.record(&mut sentence);
        writeln!(writer, "{}", sentence.0)
    }
}

/// The message of an event.
struct Sentence(String);

impl Visit for Sentence {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_that_ends_the_command_passes_every_filter_and_nothing_else_does() {
        let check = |level: &str, notes: bool| {
            let filter = with_failures(&level.parse().unwrap());
            assert!(filter.would_enable(NOTE, &Level::ERROR), "{level}");
            assert_eq!(filter.would_enable(NOTE, &Level::INFO), notes, "{level}");
            assert_eq!(
                filter.would_enable("firstlight::request", &Level::ERROR),
                level.parse::<Targets>().unwrap().would_enable("firstlight::request", &Level::ERROR)
            );
        };
        check("off", false);
        check("hyper=debug", false);
        check("info,firstlight::note=off", false);
        check("error", false);
        check("info", true);
        check("off,firstlight::note=info", true);
    }
}
