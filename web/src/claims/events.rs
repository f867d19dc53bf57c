//! What the worker says of answers, as the conversation shows it.

use std::cell::RefCell;
use std::rc::Rc;

use firstlight_engine::request::FinishReason;
use leptos::prelude::*;

use super::page::{Stage, backend, frame};
use super::turn;
use crate::page::answers::{Answer, AnswerState};
use crate::page::conversation::Conversation;
use crate::protocol::{AskId, Command, Event, Sampling};

super::claims![
    text_of_many_events_is_shown_once_a_frame_and_in_their_order,
    a_token_of_one_answer_touches_no_other,
    the_stop_button_of_an_answer_cancels_that_one,
    events_of_an_ended_answer_change_nothing,
    events_of_an_answer_that_nobody_asked_for_change_nothing,
    what_came_before_the_end_is_shown_with_it,
    a_worker_that_ends_ends_every_answer_with_its_reason,
];

/// A conversation in which one prompt was asked `copies` times.
fn asked(copies: usize) -> (Stage, Vec<Answer>) {
    let stage = Stage::new(|_| view! { <Conversation/> });
    let page = stage.page;
    page.hear(Event::Ready(backend()));
    page.submit("a prompt".into(), Sampling::default(), copies);
    let answers = page.turns.with_untracked(|turns| turns[0].answers.get_untracked());
    (stage, answers)
}

fn text(answer: Answer, text: &str, tokens: u32) -> Event {
    Event::Text { ask: answer.ask, text: text.into(), tokens, token_ids: vec![1] }
}

fn finished(ask: AskId, reason: FinishReason) -> Event {
    Event::Finished { ask, reason, detail: None }
}

/// Every text that `answer` had, one after the other.
fn watch(answer: Answer) -> Rc<RefCell<Vec<String>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let hand = Rc::clone(&seen);
    Effect::new(move |_| hand.borrow_mut().push(answer.text.get()));
    seen
}

async fn text_of_many_events_is_shown_once_a_frame_and_in_their_order() {
    let (stage, answers) = asked(1);
    frame().await;
    let seen = watch(answers[0]);
    turn().await;
    let mut whole = String::new();
    for round in 0..3 {
        // Within one task of the event loop, as messages that waited for it come.
        for token in 0..100 {
            let more = format!("{round}.{token} ");
            whole.push_str(&more);
            stage.page.hear(text(answers[0], &more, round * 100 + token + 1));
        }
        let shown = seen.borrow().last().cloned().unwrap_or_default();
        assert_eq!(answers[0].text.get_untracked(), shown, "nothing is shown before the frame");
        frame().await;
        turn().await;
        assert_eq!(seen.borrow().len(), round as usize + 2, "and then all at once");
        assert_eq!(seen.borrow().last(), Some(&whole));
        assert_eq!(stage.one(".answer-text").text_content().unwrap_or_default().trim(), whole.trim());
        assert_eq!(answers[0].tokens.get_untracked().0, round * 100 + 100);
    }
}

async fn a_token_of_one_answer_touches_no_other() {
    let (stage, answers) = asked(3);
    frame().await;
    let others = [watch(answers[0]), watch(answers[2])];
    turn().await;
    stage.page.hear(text(answers[1], "x", 1));
    frame().await;
    turn().await;
    let shown = [1, 2, 3].map(|at| {
        stage.one(&format!(".answer:nth-child({at}) .answer-text")).text_content().unwrap_or_default()
    });
    assert_eq!(shown, ["", "x", ""]);
    assert_eq!(others.map(|seen| seen.borrow().len()), [1, 1]);
}

async fn the_stop_button_of_an_answer_cancels_that_one() {
    let (stage, answers) = asked(3);
    frame().await;
    stage.one(".answer:nth-child(2) .stop").click();
    stage.expect_last(&Command::Cancel { ask: answers[1].ask }).await;
    let cancelled = stage.heard().iter().filter(|c| matches!(c, Command::Cancel { .. })).count();
    assert_eq!((cancelled, stage.page.running.get_untracked()), (1, 3), "it ends when the worker says so");
    stage.page.hear(finished(answers[1].ask, FinishReason::Cancelled));
    frame().await;
    assert_eq!((stage.count(".stop"), stage.page.running.get_untracked()), (2, 2));
}

async fn events_of_an_ended_answer_change_nothing() {
    let (stage, answers) = asked(2);
    let (page, answer) = (stage.page, answers[0]);
    page.hear(Event::Accepted { ask: answer.ask, id: "a".into(), rendered: None, prompt_tokens: None });
    page.hear(text(answer, "whole", 1));
    page.hear(finished(answer.ask, FinishReason::Stop));
    frame().await;
    let ended = AnswerState::Ended { reason: FinishReason::Stop, detail: None };
    let html = stage.one(".answer:nth-child(1)").inner_html();
    page.hear(text(answer, " and more", 2));
    page.hear(Event::Accepted { ask: answer.ask, id: "a".into(), rendered: None, prompt_tokens: None });
    page.hear(finished(answer.ask, FinishReason::Failed));
    frame().await;
    turn().await;
    assert_eq!(answer.state.get_untracked(), ended);
    assert_eq!((answer.text.get_untracked().as_str(), answer.tokens.get_untracked().0), ("whole", 1));
    assert_eq!(page.running.get_untracked(), 1, "it is counted once");
    assert_eq!(stage.one(".answer:nth-child(1)").inner_html(), html);
}

async fn events_of_an_answer_that_nobody_asked_for_change_nothing() {
    let (stage, answers) = asked(1);
    frame().await;
    let html = stage.one("#log").inner_html();
    let stranger = AskId(answers[0].ask.0 + 1000);
    stage.page.hear(Event::Accepted { ask: stranger, id: "s".into(), rendered: None, prompt_tokens: None });
    stage.page.hear(Event::Text { ask: stranger, text: "x".into(), tokens: 1, token_ids: Vec::new() });
    stage.page.hear(finished(stranger, FinishReason::Stop));
    frame().await;
    assert_eq!((stage.one("#log").inner_html(), stage.page.running.get_untracked()), (html, 1));
}

async fn what_came_before_the_end_is_shown_with_it() {
    let (stage, answers) = asked(1);
    frame().await;
    stage.page.hear(text(answers[0], "the end", 2));
    stage.page.hear(finished(answers[0].ask, FinishReason::Length));
    turn().await;
    let shown = stage.one(".answer").text_content().unwrap_or_default();
    assert!(shown.contains("the end") && shown.contains("2 tokens"), "{shown}");
    assert_eq!(stage.one(".answer").get_attribute("data-state").as_deref(), Some("done"));
}

async fn a_worker_that_ends_ends_every_answer_with_its_reason() {
    let (stage, answers) = asked(2);
    let page = stage.page;
    page.hear(text(answers[1], "so far", 1));
    page.hear(finished(answers[0].ask, FinishReason::Stop));
    // The stand-in breaks of it.
    page.send(&Command::Delete { key: "k".into() });
    super::until(|| page.died.get_untracked().is_some()).await;
    frame().await;
    let state = answers[0].state.get_untracked();
    assert_eq!(state, AnswerState::Ended { reason: FinishReason::Stop, detail: None }, "it had ended");
    match answers[1].state.get_untracked() {
        AnswerState::Ended { reason: FinishReason::Failed, detail: Some(detail) } => {
            assert!(detail.contains("the engine's worker ended") && detail.contains("it broke"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    let shown = stage.one(".answer:nth-child(2)").text_content().unwrap_or_default();
    assert!(shown.contains("so far") && shown.contains("it broke"), "{shown}");
    assert_eq!((page.running.get_untracked(), page.backend.get_untracked()), (0, None));
    // So that there is one to be ended with the stage.
    page.start_worker();
}
