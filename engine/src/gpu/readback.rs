//! Bytes back from the GPU: one of the engine's three awaits.
//!
//! Never polls: the host drives the device while the future waits. Invariant: a buffer that was mapped is unmapped again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_channel::oneshot;

use super::Device;
use super::memory::Buffer;
use crate::error::RunnerError;

impl Buffer {
    /// Maps the first `bytes` of a read-back buffer and copies them out.
    pub(crate) async fn read(&self, device: &Device, bytes: u64) -> Result<Vec<u8>, RunnerError> {
        let slice = self.wgpu.slice(..bytes);
        let _unmap = Unmap(&self.wgpu);
        let (sender, mapped) = oneshot::channel();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            // Nobody listens any more where the step was dropped at its await.
            let _ = sender.send(result);
        });
        // A driver that loses its device may forget its callbacks: whoever waits looks for the loss as well. A sender that is
        // dropped unused is a device that went away without a word.
        let mut mapped = pin!(mapped);
        let result = poll_fn(|context| match mapped.as_mut().poll(context) {
            Poll::Pending if device.is_lost() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => Poll::Ready(result.ok()),
        });
        if !matches!(result.await, Some(Ok(()))) {
            return Err(RunnerError::DeviceLost("the read-back buffer could not be mapped".into()));
        }
        slice
            .get_mapped_range()
            .map(|view| view.to_vec())
            .map_err(|e| RunnerError::Internal(format!("the mapped read-back buffer could not be read: {e}")))
    }
}

/// Unmaps on every path, also where the step is dropped while it waits: the next one then finds the buffer free.
struct Unmap<'a>(&'a wgpu::Buffer);

impl Drop for Unmap<'_> {
    fn drop(&mut self) {
        self.0.unmap();
    }
}
