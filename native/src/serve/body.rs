//! Reading a request's body whole, within its limits.
//!
//! Invariant: never more than the limit is kept, of one body and of all together, and a client that stops sending is
//! answered.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::errors::ApiError;

/// However slowly it comes, a body is whole by then.
const LONGEST: Duration = Duration::from_secs(300);
/// What the bodies that are being read and understood take together, in KiB.
const ALL_BODIES_KIB: usize = 256 << 10;
/// Long bodies that are understood side by side: as JSON values they take many times their bytes.
const LONG_AT_ONCE: usize = 4;
/// From here on a body is long.
const LONG_BYTES: usize = 64 << 10;

/// The limits of bodies, and the room that they share.
pub struct Bodies {
    max_bytes: u64,
    stall: Duration,
    room: Arc<Semaphore>,
    long: Semaphore,
}

/// A whole body, and its share of the room.
pub struct WholeBody {
    /// All of it.
    pub bytes: Vec<u8>,
    room: Room,
}

/// A share of the room, given back when it is dropped: to be kept as long as what the body said is.
#[derive(Default)]
pub struct Room {
    permit: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Bodies of at most `max_bytes`, which may pause for `stall`.
    pub fn new(max_bytes: u64, stall: Duration) -> Self {
        let room = Arc::new(Semaphore::new(ALL_BODIES_KIB));
        Self { max_bytes, stall, room, long: Semaphore::new(LONG_AT_ONCE) }
    }

    /// Makes of a body what it says: here, or on a thread for such work where it is long.
    ///
    /// # Errors
    /// What `read` said.
    pub async fn understand<T: Send + 'static>(
        &self,
        body: WholeBody,
        read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Room), ApiError> {
        let WholeBody { bytes, room } = body;
        if bytes.len() < LONG_BYTES {
            return Ok((read(&bytes)?, room));
        }
        let _turn = self.long.acquire().await.map_err(|_| ApiError::lost())?;
        let understood =
            tokio::task::spawn_blocking(move || read(&bytes)).await.map_err(|_| ApiError::lost())?;
        Ok((understood?, room))
    }

    /// Reads the body of a call.
    ///
    /// # Errors
    /// 415 where it is not JSON by its header, 413 where it is too long, 408 where it does not come, 400 where it is cut,
    /// 429 where other bodies take all the room.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<WholeBody, ApiError> {
        // A page of another origin may send anything but this without asking first.
        let kind =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
            return Err(ApiError::media_type());
        }
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        if let Some(encoding) = encoding.filter(|name| !name.trim().eq_ignore_ascii_case("identity")) {
            return Err(ApiError::encoded(encoding));
        }
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let announced = announced.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        // Whoever asked first is told before it sends anything.
        let asks_first = headers.contains_key(header::EXPECT);
        if announced > self.max_bytes && (asks_first || announced > self.swallowed()) {
            return Err(ApiError::too_large(self.max_bytes));
        }
        let late = |_| ApiError::timeout("the body did not come in time; send it again, without pauses");
        timeout(LONGEST, self.collect(body)).await.map_err(late)?
    }

    /// A client in the middle of a body hears nothing: up to here what is too long is read and forgotten, then answered.
    fn swallowed(&self) -> u64 {
        self.max_bytes.saturating_mul(2).max(16 << 20)
    }

    async fn collect(&self, mut body: Body) -> Result<WholeBody, ApiError> {
        let (mut whole, mut length) = (WholeBody { bytes: Vec::new(), room: Room::default() }, 0);
        loop {
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let frame = timeout(self.stall, frame).await.map_err(|_| {
                let seconds = self.stall.as_secs();
                ApiError::timeout(format!("nothing came of the body for {seconds} s; send it again"))
            })?;
            match frame {
                None if length > self.max_bytes => return Err(ApiError::too_large(self.max_bytes)),
                None => return Ok(whole),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    length += data.len() as u64;
                    if length > self.swallowed() {
                        return Err(ApiError::too_large(self.max_bytes));
                    }
                    match length > self.max_bytes {
                        true => whole = WholeBody { bytes: Vec::new(), room: Room::default() },
                        false => whole.push(&data, &self.room)?,
                    }
                }
                Some(Err(error)) => {
                    return Err(ApiError::invalid(format!(
                        "the body cannot be read: {error}; send it again"
                    )));
                }
            }
        }
    }
}

impl WholeBody {
    fn push(&mut self, data: &[u8], room: &Arc<Semaphore>) -> Result<(), ApiError> {
        let kib = |bytes: usize| bytes.div_ceil(1024);
        let more = kib(self.bytes.len() + data.len()) - kib(self.bytes.len());
        let full = |_| ApiError::busy("the bodies of other requests take all the room; try again later");
        let permit =
            Arc::clone(room).try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX)).map_err(full)?;
        match &mut self.room.permit {
            Some(held) => held.merge(permit),
            None => self.room.permit = Some(permit),
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}
