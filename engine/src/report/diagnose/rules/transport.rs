//! From the text to the client: what clients saw, what the server wrote late, and who does not read.
//!
//! A buffering proxy takes the server's bytes at once: only a client's own instants show it. Invariant: without them the
//! rule speaks of the server's side alone and says so.

use super::super::ClientSide;
use super::super::statistics::coin_tail;
use super::*;

/// The share of a first token's time, and of a whole answer's, from which on transport is a large one.
const LATE: f64 = 0.3;
/// A delay that somebody sees.
const SEEN: Nanos = 50_000_000;
/// Readers that have to be slow before it is no accident...
const SLOW_READERS: usize = 3;
/// ...unless one of them is as slow as no machine is by accident.
const SLOW_ALONE: Nanos = 1_000_000_000;

pub(in super::super) fn weigh(case: &Case) -> Weighed {
    if let Some(found) = case.asked.client.and_then(|client| at_the_client(&client)) {
        return Ok(found);
    }
    let now = case.now;
    let n = now.answers.len();
    let slow = now.answers.iter().filter(|a| a.tail >= SEEN && a.tail as f64 >= LATE * a.e2e as f64);
    let (slow, longest) = (slow.clone().count(), slow.map(|a| a.tail).max());
    let part = share(now.each(|a| a.transport).iter().sum(), now.each(|a| a.first).iter().sum());
    let late = now.answers.iter().filter(|a| a.transport as f64 >= LATE * a.first as f64).count();
    let seen = match case.asked.client {
        Some(client) => format!(
            "{} answers: TTFT {} at the client and {} at the server, p50",
            client.answers,
            Lasted(client.ttft),
            Lasted(client.server_ttft)
        ),
        None => "what clients saw was not measured (--probe)".to_owned(),
    };
    let sentence = format!(
        "{} of the first tokens' time is between token and write, n {n}; {slow} answers were written to their end {} of their time or more after they were made; {seen}",
        percent(part),
        percent(LATE),
    );
    if part >= LATE && n >= FEWEST && coin_tail(late, n) < ALPHA_EACH {
        let hold: Nanos =
            now.answers.iter().filter_map(|a| a.timeline.parts()?.transport).map(|t| t.hold).sum();
        let held = share(hold, now.each(|a| a.transport).iter().sum());
        let found = Found::new(
            Certainty::Certain,
            "counted: most first tokens were there long before they were written",
            n,
            part,
        );
        let found = found
            .p(coin_tail(late, n))
            .says(sentence)
            .says(format!("{} of that they had no text that could be shown", percent(held)));
        return Ok(match held >= 0.5 {
            true => found.at(
                Stage::Transport,
                "why text is held back: stop strings that it may begin with, or a policy's phrases",
            ),
            false => found,
        });
    }
    if slow >= SLOW_READERS || longest >= Some(SLOW_ALONE) {
        let certainty = if slow >= SLOW_READERS { Certainty::Certain } else { Certainty::Possible };
        let reason = match certainty {
            Certainty::Certain => "counted: these answers had ended, and their clients had not read them",
            _ => "counted, but of so few that it may be an accident",
        };
        let found = Found::new(certainty, reason, n, slow as f64 / n.max(1) as f64).says(sentence);
        let found =
            found.says(format!("{slow} of {n} answers, the longest {} after its end", some_time(longest)));
        return Ok(found.at(
            Stage::Transport,
            "clients that read slowly, or a slow network to them: the server writes no faster than they read",
        ));
    }
    match (n < FEWEST, case.asked.client) {
        (true, None) => too_little(n, "answered requests"),
        _ => quiet(sentence),
    }
}

/// Client and server side by side, of the same answers.
fn at_the_client(client: &ClientSide) -> Option<Found> {
    let between = client.ttft.saturating_sub(client.server_ttft);
    let both = format!(
        "TTFT at the client {}, at the server {}, p50, n {}; a connection takes {}",
        Lasted(client.ttft),
        Lasted(client.server_ttft),
        client.answers,
        Lasted(client.connect)
    );
    let effect = client.ttft as f64 / client.server_ttft.max(1) as f64;
    if client.buffered * 2 > client.answers {
        let certainty = if client.buffered >= SLOW_READERS { Certainty::Certain } else { Certainty::Likely };
        let found = Found::new(
            certainty,
            "each of these answers was made over a time and arrived in lumps",
            client.answers,
            effect,
        );
        return Some(found.says(both).says(format!(
            "{} of {} answers arrived in lumps; {} tokens had been made before the first text arrived",
            client.buffered, client.answers, client.made_before_first
        )));
    }
    let is_late = between >= SEEN.max(3 * client.connect) && between as f64 >= LATE * client.ttft as f64;
    is_late.then(|| {
        let found = Found::new(
            Certainty::Likely,
            "the answers streamed, but the way takes long",
            client.answers,
            effect,
        );
        found
            .says(both)
            .at(Stage::Transport, "the network, and what proxies do before they pass a request on")
    })
}
