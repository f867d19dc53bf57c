//! What a prompt knows of the conversation before it.
//!
//! It never asks anything. Invariant: roles alternate after the system message: a turn comes with its answer or not at all.

use crate::protocol::Message;

/// One turn of a conversation, as the next prompt sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastTurn {
    /// What was asked.
    pub prompt: String,
    /// The answer that the conversation goes on from; `None` while it runs, and where there is none.
    pub answer: Option<String>,
    /// Whether that answer is still to come.
    pub running: bool,
}

/// The messages of a chat prompt: system message, the turns that have an answer, and the prompt.
pub fn messages(system: &str, past: &[PastTurn], prompt: &str) -> Vec<Message> {
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let mut messages = Vec::with_capacity(past.len() * 2 + 2);
    if !system.trim().is_empty() {
        messages.push(message("system", system.trim()));
    }
    for turn in past {
        if let Some(answer) = turn.answer.as_deref().filter(|answer| !answer.is_empty()) {
            messages.push(message("user", &turn.prompt));
            messages.push(message("assistant", answer));
        }
    }
    messages.push(message("user", prompt));
    messages
}

/// In a sentence, what the next prompt will know.
pub fn knows(past: &[PastTurn]) -> String {
    let known = past.iter().filter(|turn| turn.answer.as_deref().is_some_and(|a| !a.is_empty())).count();
    let running = past.iter().filter(|turn| turn.running).count();
    let known = match known {
        0 => "Starts a conversation".to_owned(),
        1 => "Continues after 1 turn".to_owned(),
        n => format!("Continues after {n} turns"),
    };
    match running {
        0 => format!("{known}."),
        1 => format!("{known}, without the one that is still being answered."),
        n => format!("{known}, without the {n} that are still being answered."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(prompt: &str, answer: Option<&str>) -> PastTurn {
        PastTurn { prompt: prompt.into(), answer: answer.map(str::to_owned), running: answer.is_none() }
    }

    #[test]
    fn a_prompt_knows_the_turns_that_have_an_answer() {
        let check = |system: &str, past: &[PastTurn], expected: &[(&str, &str)], sentence: &str| {
            let got = messages(system, past, "now");
            let got: Vec<_> = got.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
            assert_eq!(got, expected);
            assert_eq!(knows(past), sentence);
        };
        check("", &[], &[("user", "now")], "Starts a conversation.");
        check(" be brief ", &[], &[("system", "be brief"), ("user", "now")], "Starts a conversation.");
        let answered = [turn("one", Some("1")), turn("two", None), turn("three", Some(""))];
        let expected = [("user", "one"), ("assistant", "1"), ("user", "now")];
        check(
            "",
            &answered,
            &expected,
            "Continues after 1 turn, without the one that is still being answered.",
        );
        let two = [turn("a", Some("b")), turn("c", Some("d"))];
        let expected =
            [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "now")];
        check("", &two, &expected, "Continues after 2 turns.");
        let waiting = [turn("a", None), turn("b", None)];
        let sentence = "Starts a conversation, without the 2 that are still being answered.";
        check("", &waiting, &[("user", "now")], sentence);
    }
}
