//! Whether something on the way holds a stream back.
//!
//! Pure: when the server made its tokens and when their text arrived go in, a judgement comes out. Where the server says
//! nothing of itself it is a suspicion at most. Invariant: both clocks count from the request, so that only a clock that
//! runs at another speed could mislead.

use serde::Serialize;

use firstlight_engine::clock::Nanos;

/// Fewer pieces say nothing.
const FEWEST_PIECES: usize = 12;
/// An answer that was made faster says nothing: what it was held for could be the machine's own business.
const SHORTEST_ANSWER: Nanos = 100_000_000;
/// What the middle piece may be late by, beyond the quickest tenth, before that is called buffering: this, and so many of
/// the server's own gaps.
const LATE: Nanos = 25_000_000;
const LATE_GAPS: u64 = 3;
/// Pieces that arrive closer together than this came together.
const TOGETHER: Nanos = 1_000_000;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Too few pieces or too short an answer.
    TooShort,
    /// The text came as the server made it.
    Streamed,
    /// Nothing looks like buffering, as far as it can be seen from here.
    Unsuspicious,
    /// It looks like buffering, from here.
    Suspected,
    /// The server made the text over a time, and it arrived in lumps.
    Buffered,
}

/// What was found, and the figures for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// What was found.
    pub kind: Kind,
    /// Pieces of text that arrived.
    pub pieces: usize,
    /// Groups in which they arrived together.
    pub bursts: usize,
    /// From the request to the first text at the client.
    pub first_arrived: Nanos,
    /// From the first text at the client to the last.
    pub arrived_over: Nanos,
    /// The server's side, where it is known.
    #[serde(flatten)]
    pub made: Option<Made>,
}

/// The server's side of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Made {
    /// Tokens.
    pub tokens: usize,
    /// From its first token to its last.
    pub made_over: Nanos,
    /// How much longer the first text was on its way than the quickest tenth of all.
    pub first_late: Nanos,
    /// The same of the middle one.
    pub median_late: Nanos,
    /// Tokens that the server had made when the client got the first text.
    pub made_before_first: usize,
}

/// Judges one answer: when its text arrived, and when the server made its tokens, where it says so.
pub fn judge(arrivals: &[Nanos], made: Option<&[Nanos]>) -> Option<Judgement> {
    let (first, last) = (*arrivals.first()?, *arrivals.last()?);
    let bursts = 1 + arrivals.windows(2).filter(|pair| pair[1].saturating_sub(pair[0]) > TOGETHER).count();
    let judgement = Judgement {
        kind: Kind::TooShort,
        pieces: arrivals.len(),
        bursts,
        first_arrived: first,
        arrived_over: last.saturating_sub(first),
        made: made.and_then(|made| lateness(arrivals, made)),
    };
    let enough = arrivals.len() >= FEWEST_PIECES;
    let kind = match judgement.made {
        _ if !enough => Kind::TooShort,
        Some(made) if made.made_over < SHORTEST_ANSWER => Kind::TooShort,
        Some(made) => {
            let gap = made.made_over / (made.tokens as u64 - 1).max(1);
            let late = made.median_late >= LATE.max(gap.saturating_mul(LATE_GAPS));
            // A busy machine makes pieces late one by one; a buffer makes them late together.
            let in_lumps = bursts * 2 <= arrivals.len();
            if late && in_lumps { Kind::Buffered } else { Kind::Streamed }
        }
        // Who made the lumps cannot be seen from here, nor whether the server is simply fast.
        None if bursts * 4 <= arrivals.len() && last >= SHORTEST_ANSWER => Kind::Suspected,
        None => Kind::Unsuspicious,
    };
    Some(Judgement { kind, ..judgement })
}

/// How late the pieces were, each beside the token that was made when as much of the answer was before it: the last
/// token often ends the answer and has no text.
fn lateness(arrivals: &[Nanos], made: &[Nanos]) -> Option<Made> {
    let (first, last) = (*made.first()?, *made.last()?);
    let token_of = |piece: usize| piece * made.len() / arrivals.len();
    let held = |(piece, at): (usize, &Nanos)| i128::from(*at) - i128::from(made[token_of(piece)]);
    let mut held: Vec<i128> = arrivals.iter().enumerate().map(held).collect();
    let first_held = *held.first()?;
    held.sort_unstable();
    // What everything takes. Not the quickest of all: a piece that was put beside the wrong token would be that.
    let usual = held[held.len() / 10];
    let late = |held: i128| Nanos::try_from((held - usual).max(0)).unwrap_or(Nanos::MAX);
    // Nothing arrives before it is made: what looks like it was put beside the wrong token.
    let seen = i128::from(*arrivals.first()?) - (*held.first()?).max(0);
    Some(Made {
        tokens: made.len(),
        made_over: last - first,
        first_late: late(first_held),
        median_late: late(held[held.len() / 2]),
        made_before_first: made.iter().filter(|at| i128::from(**at) <= seen).count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn check(what: &str, arrivals: &[Nanos], made: Option<&[Nanos]>, expected: Kind) {
        let judgement = judge(arrivals, made).expect("there is an answer");
        assert_eq!(judgement.kind, expected, "{what}: {judgement:?}");
    }

    fn every(gap_ms: u64, n: u64, from_ms: u64) -> Vec<Nanos> {
        (0..n).map(|i| (from_ms + i * gap_ms) * MS).collect()
    }

    #[test]
    fn a_stream_that_arrives_as_it_is_made_is_not_buffered_and_one_in_lumps_is() {
        let made = every(25, 40, 100);
        let delayed = |by: u64| made.iter().map(|at| at + by * MS).collect::<Vec<_>>();
        check("at once", &delayed(0), Some(&made), Kind::Streamed);
        check("a slow network delays all alike", &delayed(300), Some(&made), Kind::Streamed);
        let mut jitter = delayed(1);
        for at in jitter.iter_mut().skip(3).step_by(5) {
            *at += 20 * MS;
        }
        check("some are late", &jitter, Some(&made), Kind::Streamed);
        check("all at the end", &[1080 * MS; 40], Some(&made), Kind::Buffered);
        let tired: Vec<Nanos> = made.iter().zip(0_u64..).map(|(at, n)| at + n * n % 7 * 90 * MS).collect();
        let mut one_by_one = tired;
        one_by_one.sort_unstable();
        check("a busy client reads late, but one by one", &one_by_one, Some(&made), Kind::Streamed);
        let lumps: Vec<Nanos> = (0..40).map(|i| made[(i / 20 * 20) + 19] + MS).collect();
        check("every twenty", &lumps, Some(&made), Kind::Buffered);
        let judgement = judge(&[1080 * MS; 40], Some(&made)).expect("there is an answer");
        let evidence = judgement.made.expect("the server told");
        assert_eq!((judgement.bursts, evidence.made_before_first, evidence.first_late), (1, 40, 875 * MS));
    }

    #[test]
    fn pieces_and_tokens_need_not_be_as_many() {
        let made = every(25, 48, 100);
        check("the end token has no text", &every(25, 47, 101), Some(&made), Kind::Streamed);
        let mut uneven = every(25, 40, 100);
        for at in &mut uneven[20..] {
            *at += 300 * MS;
        }
        let heard: Vec<Nanos> = uneven.iter().take(39).map(|at| at + MS).collect();
        check("one long gap and an end without text", &heard, Some(&uneven), Kind::Streamed);
        check("two tokens a piece", &every(50, 24, 126), Some(&made), Kind::Streamed);
        check("two pieces a token, at the end", &[2000 * MS; 96], Some(&made), Kind::Buffered);
    }

    #[test]
    fn without_the_servers_own_word_it_is_a_suspicion() {
        check("one burst", &[900 * MS; 30], None, Kind::Suspected);
        check("a stream", &every(25, 30, 100), None, Kind::Unsuspicious);
        check("a fast server", &vec![40 * MS; 30], None, Kind::Unsuspicious);
    }

    #[test]
    fn little_says_nothing_and_nonsense_is_no_panic() {
        check("few", &every(25, 11, 0), Some(&every(25, 11, 0)), Kind::TooShort);
        check("fast", &every(1, 40, 0), Some(&every(1, 40, 0)), Kind::TooShort);
        check("nothing made", &every(25, 30, 100), Some(&[]), Kind::Unsuspicious);
        check("one made", &every(25, 30, 100), Some(&[5]), Kind::TooShort);
        check("beyond measure", &[0; 12], Some(&[0, u64::MAX]), Kind::Buffered);
        assert_eq!(judge(&[], Some(&[1])), None);
    }
}
