//! The body of a streamed answer, and the stamps that it makes as its pieces are handed to the socket.
//!
//! Invariant: a piece is stamped when the connection takes it, not when it was made; a body that ends before its last
//! piece ends in an error, so that a cut answer never looks whole.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc;

use firstlight_engine::clock::{Clock, Nanos};

use crate::clock::InstantClock;

/// Pieces that wait for the connection at most: what comes behind them stays with the relay.
const PIECES: usize = 8;

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
