//! `firstlight diagnose`: names the stage to look at.
//!
//! The judging is `engine::report::diagnose`; here its windows are fetched and its sentences are shown. Invariant: whatever a
//! file or a server holds, the command ends in a diagnosis or in one sentence.

mod print;
mod source;

use firstlight_engine::report::diagnose::{Asked, ClientSide, Diagnosis, Observed};

use self::source::Source;
use crate::bench::style::Style;
use crate::cli::{DiagnoseArgs, OutputArgs, ProbeArgs};
use crate::failure::Failure;
use crate::probe::report::ProbeReport;
use crate::probe::verdict::Kind;
use crate::terminal;

/// Tokens of a chat that is asked for to see when its text arrives: fewer say little about buffering.
const PROBE_TOKENS: u32 = 48;
/// What is asked then.
const PROBE_PROMPT: &str = "Tell me in a few sentences how rain comes about.";
/// Seconds that one such answer may take.
const PROBE_TIMEOUT: u32 = 120;

/// Runs the command.
///
/// # Errors
/// Wrong usage, a file that cannot be read or is none, a server that does not answer.
pub fn run(args: &DiagnoseArgs) -> Result<(), Failure> {
    let read = |text: &str| Source::read(text, args.case.as_deref(), args.api_key.as_deref());
    let subject = read(&args.subject)?;
    let baseline = args.baseline.as_deref().map(read).transpose()?;
    let last = args.last.map_or(subject.window.len(), |last| last as usize);
    let now = subject.window.before_last(0, last);
    let before = args.baseline_last.map(|count| subject.window.before_last(last, count as usize));
    if before.as_ref().is_some_and(firstlight_engine::report::ReportWindow::is_empty) {
        return Err(Failure::usage(format!(
            "there are {} requests and --last takes {last} of them, so that none is before them; lower --last",
            subject.window.len()
        )));
    }
    let client = (args.probe > 0).then(|| ask(args, &subject)).transpose()?;
    let asked = Asked { worse_answers: args.worse_answers, client };
    let now = Observed { window: &now, steps: &subject.steps, conditions: &subject.conditions };
    let earlier = match (&before, &baseline) {
        (Some(window), _) => Some(Observed { window, ..now }),
        (None, Some(source)) => Some(source.observed()),
        (None, None) => None,
    };
    let diagnosis = Diagnosis::of(now, earlier, asked);
    match args.output.json {
        true => terminal::write_json(&diagnosis),
        false => terminal::write_line(&print::lines(&diagnosis, Style::of_stdout()).join("\n")),
    }
}

/// Asks the server for a few chats, to see when their text arrives.
fn ask(args: &DiagnoseArgs, subject: &Source) -> Result<ClientSide, Failure> {
    let Some(url) = subject.url.clone() else {
        return Err(Failure::usage(format!(
            "--probe {} asks a server, and {:?} is a file; give the server's URL",
            args.probe, args.subject
        )));
    };
    let probe = ProbeArgs {
        url,
        requests: args.probe,
        concurrency: 1,
        max_tokens: PROBE_TOKENS,
        prompt: PROBE_PROMPT.into(),
        api_key: args.api_key.clone(),
        model: None,
        timeout: PROBE_TIMEOUT,
        output: OutputArgs { json: true },
    };
    let (report, failures) = crate::probe::measure(&probe)?;
    if let Some(first) = failures.first() {
        return Err(Failure::failed(format!("a chat of --probe failed: {}", first.sentence)));
    }
    client_side(&report).ok_or_else(|| {
        Failure::failed("the server tells no timeline of its answers, so that --probe has nothing to compare; use `firstlight probe`")
    })
}

/// The answers whose server tells its own side.
fn client_side(report: &ProbeReport) -> Option<ClientSide> {
    let told = || report.answers.iter().filter(|answer| answer.between.is_some());
    let is_buffered = |kind: Kind| kind == Kind::Buffered;
    let evidence = report.verdict.evidence.and_then(|judgement| judgement.made);
    Some(ClientSide {
        answers: told().count(),
        buffered: told().filter(|a| a.judgement.is_some_and(|judgement| is_buffered(judgement.kind))).count(),
        ttft: report.ttft?.p50,
        server_ttft: report.server_ttft?.p50,
        connect: report.connect?.p50,
        made_before_first: evidence.map_or(0, |made| made.made_before_first),
    })
}
