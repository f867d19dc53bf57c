//! `firstlight chat`: a conversation in the terminal, streamed, with the split of each answer after it.
//!
//! Ctrl-C stops the answer, not the program; at the prompt a second one leaves.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firstlight_engine::clock::Clock;
use firstlight_engine::request::{FinishReason, SamplingParams};
use firstlight_engine::runner::ModelRunner;
use firstlight_engine::text::{ChatMessage, PromptInput};

use crate::answer::Answer;
use crate::cli::ChatArgs;
use crate::failure::Failure;
use crate::session::{Ask, Session};
use crate::terminal::{write, write_line};
use crate::{load, run, split};

/// The most bytes of one line.
const MAX_LINE_BYTES: u64 = 1 << 20;
const HELP: &str = "/reset forgets the conversation, /quit leaves; Ctrl-C stops an answer";

/// Runs the command.
///
/// # Errors
/// Those of loading, and a device that failed; a refused question is only told.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let params = args.sampling.params(run::draw_seed())?;
    let mut session = load::session(&args.engine)?;
    let interrupt = Interrupt::install()?;
    eprintln!("{HELP}");
    let mut conversation = Conversation::new(args.system.clone());
    let mut input = std::io::stdin().lock();
    loop {
        write("> ")?;
        interrupt.at_prompt();
        let Some(line) = read_line(&mut input)? else { return write_line("") };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => return Ok(()),
            "/reset" => conversation = Conversation::new(args.system.clone()),
            "/help" => eprintln!("{HELP}"),
            question => {
                conversation.push("user", question);
                let ask = Ask {
                    input: PromptInput::Chat(conversation.messages.clone()),
                    params: params_for(&params, conversation.messages.len()),
                    parse_special: args.parse_special,
                    route: "chat",
                };
                interrupt.answering();
                match answer(&mut session, ask, &interrupt)? {
                    Some(text) => conversation.push("assistant", &text),
                    None => conversation.take_back(),
                }
            }
        }
    }
}

/// Each turn draws its own numbers; all follow from the one seed.
fn params_for(params: &SamplingParams, turn: usize) -> SamplingParams {
    SamplingParams { seed: params.seed.wrapping_add(turn as u64), ..params.clone() }
}

/// Streams one answer; `None` where the question was refused.
fn answer<R: ModelRunner>(
    session: &mut Session<R>,
    ask: Ask,
    interrupt: &Interrupt,
) -> Result<Option<String>, Failure> {
    let clock = session.clock();
    let id = session.ask(ask);
    let mut answer = Answer::default();
    while session.has_work() {
        if interrupt.take() {
            session.abort(id, FinishReason::Cancelled);
        }
        let stepped = session.step();
        for event in stepped.events {
            let added = answer.take(event, clock.now());
            if !added.is_empty() {
                write(&added)?;
                answer.wrote(clock.now());
            }
        }
        if let Some(error) = stepped.failure {
            return Err(Failure::failed(error.to_string()));
        }
    }
    write_line("")?;
    if let Some(broken) = answer.seal(Some(clock.now())) {
        eprintln!("the timeline is broken, which is a defect of firstlight: {broken}");
    }
    let Some(ended) = &answer.ended else { return Ok(None) };
    if let Some(reason) = &ended.detail {
        eprintln!("{reason}; /reset starts a new conversation");
        return Ok(None);
    }
    let line = split::line(&ended.timeline);
    if !line.is_empty() {
        eprintln!("{line}");
    }
    Ok(Some(answer.text))
}

/// What was said so far.
#[derive(Debug)]
struct Conversation {
    messages: Vec<ChatMessage>,
}

impl Conversation {
    fn new(system: Option<String>) -> Self {
        let mut conversation = Self { messages: Vec::new() };
        if let Some(text) = system {
            conversation.push("system", &text);
        }
        conversation
    }

    fn push(&mut self, role: &str, content: &str) {
        self.messages.push(ChatMessage { role: role.to_owned(), content: content.to_owned() });
    }

    /// Forgets the last question, so that a refused one does not stand in the way of the next.
    fn take_back(&mut self) {
        self.messages.pop();
    }
}

/// One line without its end; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut bytes = Vec::new();
    let read = std::io::Read::take(&mut *input, MAX_LINE_BYTES).read_until(b'\n', &mut bytes);
    let count = read.map_err(|error| Failure::failed(format!("standard input cannot be read: {error}")))?;
    if count as u64 == MAX_LINE_BYTES {
        return Err(Failure::usage(format!(
            "a line has more than {MAX_LINE_BYTES} bytes; use `firstlight run -f`"
        )));
    }
    Ok((count > 0).then(|| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Ctrl-C, heard in a thread of its own and read between steps.
#[derive(Clone, Debug, Default)]
struct Interrupt {
    answering: Arc<AtomicBool>,
    pressed: Arc<AtomicBool>,
}

impl Interrupt {
    fn install() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let heard = interrupt.clone();
        ctrlc::set_handler(move || {
            let again = heard.pressed.swap(true, Ordering::SeqCst);
            if heard.answering.load(Ordering::SeqCst) {
                return;
            }
            if again {
                std::process::exit(0);
            }
            eprintln!("\nCtrl-C again leaves");
        })
        .map_err(|error| Failure::failed(format!("Ctrl-C cannot be heard: {error}")))?;
        Ok(interrupt)
    }

    fn at_prompt(&self) {
        self.answering.store(false, Ordering::SeqCst);
        self.pressed.store(false, Ordering::SeqCst);
    }

    fn answering(&self) {
        self.pressed.store(false, Ordering::SeqCst);
        self.answering.store(true, Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed since the last call.
    fn take(&self) -> bool {
        self.pressed.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[&str]) {
        let mut reader = input;
        let mut lines = Vec::new();
        while let Some(line) = read_line(&mut reader).unwrap() {
            lines.push(line.trim().to_owned());
        }
        assert_eq!(lines, expected, "{input:?}");
    }

    #[test]
    fn lines_end_with_the_input() {
        check(b"", &[]);
        check(b"one\ntwo", &["one", "two"]);
        check(b"\n\n", &["", ""]);
        check(b"caf\xff\n", &["caf\u{fffd}"]);
        assert!(read_line(&mut vec![b'x'; MAX_LINE_BYTES as usize].as_slice()).is_err());
    }
}
