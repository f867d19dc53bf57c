//! The body of a streamed answer, and the stamps that it makes as its pieces are handed to the socket.
//!
//! Invariant: a piece is stamped when the connection takes it, not when it was made; a body that ends before its last
//! piece ends in an error, so that a cut answer never looks whole.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc;

use firstlight_engine::clock::{Clock, Nanos};

use crate::clock::InstantClock;

/// Pieces that wait for the connection at most: what comes behind them stays with the relay.
const PIECES: usize = 8;

/// How long a stream may be silent before it says that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What a stream carries at one time.
#[derive(Debug)]
pub struct Piece {
    /// As it goes out.
    pub bytes: Bytes,
    /// The choice whose text it holds.
    pub content_of: Option<usize>,
    /// Nothing comes after it.
    pub is_last: bool,
}

impl Piece {
    /// What is no choice's text, with more to come.
    pub fn aside(text: impl Into<Bytes>) -> Self {
        Self { bytes: text.into(), content_of: None, is_last: false }
    }

    /// The sign of life: a comment, which readers of events pass over.
    pub fn keep_alive() -> Self {
        Self::aside(&b": keep-alive\n\n"[..])
    }
}

/// When pieces were taken; 0 is never.
#[derive(Debug)]
pub struct WriteStamps {
    first: Vec<AtomicU64>,
    last: AtomicU64,
}

impl WriteStamps {
    /// When the first text of choice `idx` was taken.
    pub fn first(&self, idx: usize) -> Option<Nanos> {
        self.first.get(idx).map(|at| at.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    /// When the last piece so far was taken.
    pub fn last(&self) -> Option<Nanos> {
        Some(self.last.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    fn took(&self, piece: &Piece, now: Nanos) {
        if let Some(first) = piece.content_of.and_then(|idx| self.first.get(idx)) {
            // One body makes them all: nobody else stores between these two.
            if first.load(Ordering::Relaxed) == 0 {
                first.store(now, Ordering::Release);
            }
        }
        self.last.store(now, Ordering::Release);
    }
}

/// The body.
#[derive(Debug)]
pub struct StreamBody {
    pieces: mpsc::Receiver<Piece>,
    stamps: Arc<WriteStamps>,
    clock: InstantClock,
    ended: bool,
}

/// The way into a body, and what it stamped.
#[derive(Debug)]
pub struct StreamEnd {
    /// Takes pieces; closed once the connection has let the body go.
    pub pieces: mpsc::Sender<Piece>,
    /// What the body stamped.
    pub stamps: Arc<WriteStamps>,
}

/// A body for `num_choices` choices, and the way into it.
pub fn stream(num_choices: usize, clock: InstantClock) -> (StreamEnd, StreamBody) {
    let (sender, pieces) = mpsc::channel(PIECES);
    let first = (0..num_choices).map(|_| AtomicU64::new(0)).collect();
    let stamps = Arc::new(WriteStamps { first, last: AtomicU64::new(0) });
    let end = StreamEnd { pieces: sender, stamps: Arc::clone(&stamps) };
    (end, StreamBody { pieces, stamps, clock, ended: false })
}

/// A stream was cut.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut off")]
pub struct Cut;

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match std::task::ready!(self.pieces.poll_recv(context)) {
            Some(piece) => {
                self.stamps.took(&piece, self.clock.now());
                self.ended = piece.is_last;
                Poll::Ready(Some(Ok(Frame::data(piece.bytes))))
            }
            None => {
                self.ended = true;
                Poll::Ready(Some(Err(Cut)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(content_of: Option<usize>, is_last: bool) -> Piece {
        Piece { bytes: Bytes::from_static(b"x"), content_of, is_last }
    }

    /// Takes a body's frames until it ends: how many, and whether it was whole.
    fn take(body: &mut StreamBody) -> (usize, bool) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut taken = 0;
        loop {
            match Pin::new(&mut *body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(_))) => taken += 1,
                Poll::Ready(Some(Err(Cut))) => return (taken, false),
                Poll::Ready(None) => return (taken, true),
                Poll::Pending => panic!("nothing comes any more"),
            }
        }
    }

    #[test]
    fn pieces_are_stamped_as_they_are_taken_and_a_cut_stream_is_no_whole_one() {
        let clock = InstantClock::start();
        let (end, mut body) = stream(2, clock);
        for sent in [piece(None, false), piece(Some(1), false), piece(Some(1), false), piece(None, true)] {
            end.pieces.try_send(sent).unwrap();
        }
        assert_eq!((end.stamps.first(1), end.stamps.last()), (None, None), "nothing was taken yet");
        let before = clock.now();
        assert_eq!(take(&mut body), (4, true));
        let (first, last) = (end.stamps.first(1).unwrap(), end.stamps.last().unwrap());
        assert!(before <= first && first < last && last <= clock.now(), "{before} {first} {last}");
        assert_eq!(end.stamps.first(0), None, "nothing was said of choice 0");
        let (end, mut body) = stream(1, clock);
        end.pieces.try_send(piece(Some(0), false)).unwrap();
        drop(end);
        assert_eq!(take(&mut body), (1, false));
    }

    #[test]
    fn a_stream_that_nobody_reads_takes_no_more_than_its_pieces() {
        let (end, _body) = stream(1, InstantClock::start());
        let sent = (0..1000).take_while(|_| end.pieces.try_send(piece(Some(0), false)).is_ok()).count();
        assert_eq!(sent, PIECES);
    }
}
