//! `firstlight chat`: a conversation in the terminal, streamed, with the split of each answer after it.
//!
//! Ctrl-C stops the answer, not the program; at the prompt a second one leaves. Invariant: nothing that is typed ends
//! the conversation but `/quit`, the input's end and Ctrl-C.

use std::io::BufRead;

use firstlight_engine::clock::Clock;
use firstlight_engine::request::{FinishReason, RejectReason, SamplingParams};
use firstlight_engine::text::{ChatMessage, PromptInput};

use crate::answer::Answer;
use crate::ask::Ask;
use crate::cli::ChatArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::load::{self, Needs};
use crate::session::Session;
use crate::terminal::{note, write, write_line};
use crate::{run, split};

/// The most bytes of one line.
const MAX_LINE_BYTES: usize = 1 << 20;
const HELP: &str = "/reset forgets the conversation, /help shows this, /quit leaves; Ctrl-C stops an answer";

/// Runs the command.
///
/// # Errors
/// Those of loading, and an engine that is gone for good; a refused question, or one that the device failed in, is only
/// told.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let params = args.sampling.params(run::draw_seed())?;
    if params.logprobs.is_some() {
        return Err(Failure::usage("--logprobs is not for chat; use `firstlight run --json --logprobs N`"));
    }
    let mut session = load::session(&args.engine, Needs::Chat, 1)?;
    let interrupt = Interrupt::install()?;
    note(HELP);
    let mut conversation = Conversation::new(args.system.clone());
    let mut input = std::io::stdin().lock();
    loop {
        write("> ")?;
        interrupt.at_prompt();
        let line = match read_line(&mut input)? {
            Line::End => return write_line(""),
            Line::TooLong => {
                note(&format!("a line has more than {MAX_LINE_BYTES} bytes and was not sent; shorten it"));
                continue;
            }
            Line::Text(line) => line,
        };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => return Ok(()),
            "/reset" => {
                conversation = Conversation::new(args.system.clone());
                note("the conversation is forgotten");
            }
            "/help" => note(HELP),
            command if is_command(command) => note(&format!("there is no {command}; {HELP}")),
            question => {
                conversation.push("user", question);
                let input = PromptInput::Chat(conversation.messages.clone());
                let params = params_for(&params, conversation.messages.len());
                let ask = Ask {
                    parse_special: args.parse_special,
                    ..Ask::new(input, params, "chat", session.clock().now())
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

/// Streams one answer; `None` where it adds nothing to the conversation.
fn answer(session: &mut Session, ask: Ask, interrupt: &Interrupt) -> Result<Option<String>, Failure> {
    let clock = session.clock();
    let mut answers = run::listen(session, vec![ask], true, interrupt)?;
    write_line("")?;
    let Some(mut answer) = answers.pop() else { return Ok(None) };
    run::report_defect(answer.seal(Some(clock.now())));
    read(answer)
}

/// What an ended answer adds to the conversation; the rest is told.
fn read(answer: Answer) -> Result<Option<String>, Failure> {
    let Some(ended) = &answer.ended else { return Ok(None) };
    match (ended.reason, &ended.detail) {
        (_, Some(reason @ RejectReason::Stopped(_))) => return Err(reason.clone().into()),
        (_, Some(reason)) => {
            note(&format!("{reason}; /reset starts a new conversation"));
            return Ok(None);
        }
        // What happened stands above, from the engine's thread.
        (FinishReason::Failed, None) => {
            note("the answer is lost and the question is forgotten; ask it again");
            return Ok(None);
        }
        _ => {}
    }
    match split::line(&ended.timeline).as_str() {
        "" => note("stopped before the first token; the question is forgotten"),
        line => note(line),
    }
    // An empty answer would be read by the model as one that it gave.
    Ok(Some(answer.text).filter(|text| !text.is_empty()))
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

/// Whether a line is meant as a command; a path such as `/etc/hosts` in a question is not.
fn is_command(line: &str) -> bool {
    line.strip_prefix('/').is_some_and(|word| word.len() < 16 && word.bytes().all(|b| b.is_ascii_lowercase()))
}

/// What was typed.
#[derive(Debug, PartialEq)]
enum Line {
    /// A line without its end.
    Text(String),
    /// It was skipped up to its end.
    TooLong,
    /// There is nothing more.
    End,
}

/// Reads one line, and never keeps more of it than a line may have.
fn read_line(input: &mut impl BufRead) -> Result<Line, Failure> {
    let (mut bytes, mut length) = (Vec::new(), 0_usize);
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Failure::failed(format!("standard input cannot be read: {error}; try again")));
            }
        };
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let (taken, ended) = (end.map_or(chunk.len(), |at| at + 1), end.is_some() || chunk.is_empty());
        length = length.saturating_add(taken);
        if length <= MAX_LINE_BYTES {
            bytes.extend_from_slice(&chunk[..taken]);
        }
        input.consume(taken);
        if ended {
            break;
        }
    }
    Ok(match length {
        0 => Line::End,
        length if length > MAX_LINE_BYTES => Line::TooLong,
        _ => Line::Text(String::from_utf8_lossy(&bytes).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::{Order, Rebuild, Rig, prompt};

    fn check(input: &[u8], expected: &[Line]) {
        let mut reader = std::io::BufReader::with_capacity(7, input);
        for line in expected {
            assert_eq!(read_line(&mut reader).unwrap(), *line);
        }
        assert_eq!(read_line(&mut reader).unwrap(), Line::End);
    }

    #[test]
    fn a_question_that_the_device_failed_in_is_forgotten_and_the_next_one_is_answered() {
        let rig = Rig { slots: 1, ..Rig::default() }.start();
        rig.give(Order::Run);
        rig.give(Order::Fail);
        rig.free();
        let mut session = Session::new(rig.thread);
        let mut ask = |len| {
            let ask = Ask::new(PromptInput::Ids(prompt(len)), rig.params.clone(), "chat", 1);
            let answers = run::listen(&mut session, vec![ask], false, &Interrupt::default());
            let answer = answers.unwrap().pop().unwrap();
            (answer.tokens.len(), read(answer))
        };
        assert_eq!(ask(2), (1, Ok(None)));
        // Without a tokenizer an answer has no text, and so adds none.
        assert_eq!(ask(4), (3, Ok(None)));
    }

    #[test]
    fn an_engine_that_is_gone_ends_the_conversation() {
        let rig = Rig { rebuild: Rebuild::Fails, ..Rig::default() }.start();
        rig.give(Order::Fail);
        rig.free();
        let mut session = Session::new(rig.thread);
        let mut ask = || {
            let ask = Ask::new(PromptInput::Ids(prompt(2)), rig.params.clone(), "chat", 1);
            read(run::listen(&mut session, vec![ask], false, &Interrupt::default()).unwrap().pop().unwrap())
        };
        // A question that comes while the device is opened again fails with it.
        let failure = loop {
            match ask() {
                Ok(added) => assert_eq!(added, None),
                Err(failure) => break failure,
            }
        };
        assert!(failure.sentence.contains("the engine has stopped"), "{failure}");
    }

    fn text(line: &str) -> Line {
        Line::Text(line.to_owned())
    }

    #[test]
    fn lines_end_with_the_input() {
        check(b"", &[]);
        check(b"one\ntwo", &[text("one\n"), text("two")]);
        check(b"\n\n", &[text("\n"), text("\n")]);
        check(b"caf\xff\n", &[text("caf\u{fffd}\n")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let mut input = vec![b'x'; MAX_LINE_BYTES * 2];
        input.extend_from_slice(b"\nnext\n");
        check(&input, &[Line::TooLong, text("next\n")]);
        check(&vec![b'x'; MAX_LINE_BYTES + 1], &[Line::TooLong]);
        check(&[b'x'; MAX_LINE_BYTES], &[text(&"x".repeat(MAX_LINE_BYTES))]);
    }

    #[test]
    fn a_slash_and_one_word_is_a_command() {
        for (line, expected) in [("/qiut", true), ("/", true), ("/etc/hosts", false), ("what is /etc", false)]
        {
            assert_eq!(is_command(line), expected, "{line}");
        }
    }
}
