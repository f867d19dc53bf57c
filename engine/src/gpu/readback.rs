//! Bytes back from the GPU: one of the engine's three awaits.
//!
//! Never polls: the host drives the device while the future waits. Invariant: the buffer is unmapped again on every path.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use super::memory::Buffer;
use crate::runner::RunnerError;

/// What the mapping callback leaves for the future. The callback must be Send, though it always runs on the host's thread.
#[derive(Default)]
struct Mapped {
    result: Option<Result<(), wgpu::BufferAsyncError>>,
    waker: Option<Waker>,
}

impl Buffer {
    /// Maps the first `bytes` of a read-back buffer and copies them out.
    pub(crate) async fn read(&self, bytes: u64) -> Result<Vec<u8>, RunnerError> {
        let slice = self.wgpu.slice(..bytes);
        let shared = Arc::new(Mutex::new(Mapped::default()));
        let callback = shared.clone();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            if let Ok(mut mapped) = callback.lock() {
                mapped.result = Some(result);
                if let Some(waker) = mapped.waker.take() {
                    waker.wake();
                }
            }
        });
        let result = poll_fn(|context| {
            let Ok(mut mapped) = shared.lock() else {
                return Poll::Ready(Err(wgpu::BufferAsyncError));
            };
            match mapped.result.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    mapped.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        result.map_err(|_| RunnerError::DeviceLost("the read-back buffer could not be mapped".into()))?;
        let copied = slice.get_mapped_range().map(|view| view.to_vec()).map_err(|e| {
            RunnerError::Internal(format!("the mapped read-back buffer could not be read: {e}"))
        });
        self.wgpu.unmap();
        copied
    }
}
