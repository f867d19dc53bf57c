//! Reading a request's body whole, within its limits.
//!
//! Invariant: never more than the limit is kept, and a client that stops sending is answered.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use tokio::time::timeout;

use super::errors::ApiError;
use super::server::Limits;

/// However slowly it comes, a body is whole by then.
const LONGEST: Duration = Duration::from_secs(300);

/// Reads the body of a call.
///
/// # Errors
/// 415 where it is not JSON by its header, 413 where it is too long, 408 where it does not come, 400 where it is cut.
pub async fn read(headers: &HeaderMap, body: Body, limits: Limits) -> Result<Vec<u8>, ApiError> {
    // A page of another origin may send anything but this without asking first.
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
        return Err(ApiError::media_type());
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // Whoever asked first is told before it sends anything.
    let asks_first = headers.contains_key(header::EXPECT);
    if announced > limits.max_body && (asks_first || announced > swallowed(limits)) {
        return Err(ApiError::too_large(limits.max_body));
    }
    let late = |_| ApiError::timeout("the body did not come in time; send it again, without pauses");
    timeout(LONGEST, collect(body, limits)).await.map_err(late)?
}

/// A client in the middle of a body hears nothing: up to here what is too long is read and forgotten, then answered.
fn swallowed(limits: Limits) -> u64 {
    limits.max_body.saturating_mul(2).max(16 << 20)
}

async fn collect(mut body: Body, limits: Limits) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = timeout(limits.stall, frame).await.map_err(|_| {
            let seconds = limits.stall.as_secs();
            ApiError::timeout(format!("nothing came of the body for {seconds} s; send it again"))
        })?;
        match frame {
            None if length > limits.max_body => return Err(ApiError::too_large(limits.max_body)),
            None => return Ok(bytes),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                length += data.len() as u64;
                if length > swallowed(limits) {
                    return Err(ApiError::too_large(limits.max_body));
                }
                match length > limits.max_body {
                    true => bytes = Vec::new(),
                    false => bytes.extend_from_slice(&data),
                }
            }
            Some(Err(error)) => {
                return Err(ApiError::invalid(format!("the body cannot be read: {error}; send it again")));
            }
        }
    }
}
