//! `firstlight run`: one completion streamed, or several side by side in one batch.
//!
//! stdout carries answers only (with `--json` one object a prompt, in the prompts' order); all else goes to stderr.
//! Ctrl-C ends the answers where they are: what there is of them is printed, and the exit code is 130.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use firstlight_engine::clock::Clock;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{FinishReason, RequestId};
use firstlight_engine::text::{ChatMessage, PromptInput};

use crate::answer::Answer;
use crate::ask::Ask;
use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::load::{self, Needs};
use crate::session::Session;
use crate::split;
use crate::terminal::{note, write, write_json, write_line};

/// The most bytes that are read as one prompt.
const MAX_PROMPT_BYTES: u64 = 4 << 20;
/// How soon Ctrl-C is heard while no event comes.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// Wrong usage before anything is loaded, then the model, then the adapter, then the first answer that failed: those
/// behind it are answered all the same.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let params = args.sampling.params(draw_seed())?;
    if params.logprobs.is_some() && !args.output.json {
        return Err(Failure::usage("--logprobs shows nothing without --json; add --json"));
    }
    let prompts = prompts(args)?;
    let titles: Vec<String> = prompts.iter().map(title).collect();
    let needs = match (args.ids.is_empty(), args.raw) {
        (false, _) => Needs::Ids,
        (true, true) => Needs::Text,
        (true, false) => Needs::Chat,
    };
    let mut session = load::session(&args.engine, needs, prompts.len())?;
    let interrupt = Interrupt::install()?;
    interrupt.answering();
    let received = session.clock().now();
    let asks = prompts.into_iter().map(|input| Ask {
        parse_special: args.parse_special,
        ..Ask::new(input, params.clone(), "run", received)
    });
    answer_all(&mut session, asks.collect(), &titles, args.output.json, &interrupt)
}

/// A seed where the user gave none: hashing with fresh random keys is the standard library's source of randomness.
pub fn draw_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

fn prompts(args: &RunArgs) -> Result<Vec<PromptInput>, Failure> {
    if !args.ids.is_empty() {
        return Ok(args.ids.iter().map(|ids| PromptInput::Ids(ids.0.clone())).collect());
    }
    let texts = match (&args.file, &args.stdin) {
        (Some(path), _) => {
            let file = std::fs::File::open(path).map_err(|error| {
                Failure::usage(format!(
                    "the prompt in {} cannot be read: {error}; name a readable file with -f",
                    path.display()
                ))
            })?;
            vec![read_prompt(file, &path.display().to_string())?]
        }
        (None, Some(_)) => {
            if std::io::stdin().is_terminal() {
                note("type the prompt; Ctrl-D at the start of a line ends it");
            }
            vec![read_prompt(std::io::stdin(), "standard input")?]
        }
        (None, None) => args.prompt.clone(),
    };
    if texts.is_empty() {
        return Err(Failure::usage(
            "there is no prompt; give -p TEXT, -f FILE, - for standard input, or --ids 1,2,3",
        ));
    }
    // A model would answer to nothing too; whoever sends nothing has sent the wrong file, or forgot to fill a variable.
    if let Some(idx) = texts.iter().position(|text| is_nothing(text, args.raw)) {
        let name = match (&args.file, &args.stdin) {
            (Some(path), _) => format!("the prompt in {}", path.display()),
            (None, Some(_)) => "the prompt in standard input".into(),
            (None, None) => format!("prompt {} of {}", idx + 1, texts.len()),
        };
        return Err(Failure::usage(format!("{name} is empty; give it some text")));
    }
    let input = |text| match args.raw {
        true => PromptInput::Raw(text),
        false => PromptInput::Chat(vec![ChatMessage { role: "user".into(), content: text }]),
    };
    Ok(texts.into_iter().map(input).collect())
}

/// White space may be a whole raw text, but no question.
fn is_nothing(text: &str, raw: bool) -> bool {
    if raw { text.is_empty() } else { text.trim().is_empty() }
}

fn read_prompt(from: impl Read, name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    from.take(MAX_PROMPT_BYTES + 1).read_to_end(&mut bytes).map_err(|error| {
        Failure::usage(format!("the prompt in {name} cannot be read: {error}; name a readable file with -f"))
    })?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Failure::usage(format!(
            "the prompt in {name} has more than {MAX_PROMPT_BYTES} bytes; shorten it"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!("the prompt in {name} is no UTF-8 ({error}); convert it first"))
    })
}

/// What stands over an answer where there are several.
fn title(input: &PromptInput) -> String {
    let text = match input {
        PromptInput::Raw(text) => text.clone(),
        PromptInput::Chat(messages) => {
            messages.last().map(|message| message.content.clone()).unwrap_or_default()
        }
        PromptInput::Ids(ids) => format!("{} token ids", ids.len()),
    };
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(60).collect();
    if short.len() < text.trim_end().len() { format!("{short}...") } else { short }
}

/// Asks all at once and prints the answers, streamed if there is only one.
fn answer_all(
    session: &mut Session,
    asks: Vec<Ask>,
    titles: &[String],
    json: bool,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let clock = session.clock();
    let streamed = asks.len() == 1 && !json;
    let mut answers = listen(session, asks, streamed, interrupt)?;
    let has_text = session.has_tokenizer();
    let mut outcome = Ok(());
    for (idx, answer) in answers.iter_mut().enumerate() {
        if json {
            report_defect(answer.seal(None));
            answer.json(has_text).as_ref().map_or(Ok(()), write_json)?;
        } else {
            let number = format!("[{}] ", idx + 1);
            let heading = (!streamed).then(|| format!("{number}{}", titles[idx]));
            print_answer(answer, heading.as_deref(), has_text)?;
            report_defect(answer.seal(Some(clock.now())));
            print_split(answer, if streamed { "" } else { &number });
        }
        outcome = outcome.and_then(|()| verdict(answer));
    }
    outcome
}

/// Asks all at once and listens until all have ended; `streamed` text is written as it comes. Ctrl-C ends them where they
/// are.
///
/// # Errors
/// The reader of a streamed answer is gone.
pub fn listen(
    session: &mut Session,
    asks: Vec<Ask>,
    streamed: bool,
    interrupt: &Interrupt,
) -> Result<Vec<Answer>, Failure> {
    let clock = session.clock();
    let ids: Vec<RequestId> = asks.into_iter().map(|ask| session.ask(ask)).collect();
    let mut answers: Vec<Answer> = ids.iter().map(|_| Answer::default()).collect();
    while session.is_answering() {
        if interrupt.take() {
            ids.iter().for_each(|id| session.abort(*id, FinishReason::Cancelled));
        }
        let Some(heard) = session.hear(INTERRUPT_POLL) else { continue };
        let owner = owner(&heard.event);
        let Some(answer) = ids.iter().position(|id| *id == owner).and_then(|i| answers.get_mut(i)) else {
            continue;
        };
        let added = answer.take(heard.event, heard.at);
        if streamed && !added.is_empty() {
            write(&added)?;
            answer.wrote(clock.now());
        }
    }
    Ok(answers)
}

fn owner(event: &RequestEvent) -> RequestId {
    match event {
        RequestEvent::Token { id, .. } | RequestEvent::Finished { id, .. } => *id,
    }
}

/// Ends a streamed answer, or prints a whole one under its heading.
fn print_answer(answer: &Answer, heading: Option<&str>, has_text: bool) -> Result<(), Failure> {
    let ids = || -> String {
        let words: Vec<String> = answer.tokens.iter().map(|sampled| sampled.token.to_string()).collect();
        words.join(",")
    };
    match heading {
        Some(heading) => {
            let body = if has_text { answer.text.trim_end().to_owned() } else { ids() };
            write_line(&format!("{heading}\n{body}\n"))
        }
        None if has_text => write_line(""),
        None => write_line(&ids()),
    }
}

/// Where the answer's time went, with its number where there are several.
fn print_split(answer: &Answer, number: &str) {
    let line = answer.ended.as_ref().map(|ended| split::line(&ended.timeline)).unwrap_or_default();
    if !line.is_empty() {
        note(&format!("{number}{line}"));
    }
}

/// A timeline that breaks its own rules is a defect that must be seen; the answer stands all the same.
pub fn report_defect(broken: Option<String>) {
    if let Some(rule) = broken {
        note(&format!("the timeline is broken, which is a defect of firstlight: {rule}"));
    }
}

fn verdict(answer: &Answer) -> Result<(), Failure> {
    let Some(ended) = &answer.ended else {
        return Err(Failure::failed("an answer did not end; the engine stopped before it"));
    };
    match (ended.reason, &ended.detail) {
        (FinishReason::Rejected, Some(reason)) => Err(reason.clone().into()),
        (FinishReason::Cancelled, _) => Err(Failure::interrupted("Ctrl-C stopped the answer before its end")),
        (FinishReason::Stop | FinishReason::StopString | FinishReason::Length, _) => Ok(()),
        (reason, _) => Err(Failure::failed(format!(
            "the answer ended early ({}); run the command again",
            split::word(reason)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::{Order, Rig, prompt};

    #[test]
    fn after_a_device_failure_the_queued_prompts_are_answered_and_the_exit_code_is_1() {
        let rig = Rig { slots: 1, ..Rig::default() }.start();
        rig.give(Order::Run);
        rig.give(Order::Fail);
        rig.free();
        let mut session = Session::new(rig.thread);
        let ask = |len| Ask::new(PromptInput::Ids(prompt(len)), rig.params.clone(), "run", 1);
        let answers = listen(&mut session, vec![ask(2), ask(4)], false, &Interrupt::default()).unwrap();
        let told: Vec<_> =
            answers.iter().map(|answer| verdict(answer).map_err(|failure| failure.exit)).collect();
        assert_eq!(told, [Err(crate::failure::Exit::Failed), Ok(())]);
        assert_eq!(answers[0].tokens.len(), 1, "what there was before the failure is kept");
        assert_eq!(answers[1].tokens.len(), 3);
    }
}
