//! Waiting for the GPU: for bytes back from it, one of the engine's three awaits, and while a model loads for room.
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
    /// Maps the first `bytes` of a read-back buffer and shows them to `look`, where they lie: logits are megabytes, and of most
    /// of them one token is wanted. Where they cannot be had, it is not called.
    pub(crate) async fn read(
        &self,
        device: &Device,
        bytes: u64,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RunnerError> {
        let slice = self.wgpu.slice(..bytes);
        let _unmap = Unmap(&self.wgpu);
        let (sender, mapped) = oneshot::channel();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            // Nobody listens any more where the step was dropped at its await.
            let _ = sender.send(result);
        });
        if !matches!(device.told(mapped).await, Some(Ok(()))) {
            return Err(RunnerError::DeviceLost("the read-back buffer could not be mapped".into()));
        }
        slice
            .get_mapped_range()
            .map(|view| look(&view))
            .map_err(|e| RunnerError::Internal(format!("the mapped read-back buffer could not be read: {e}")))
    }
}

impl Device {
    /// Waits until all that was submitted is done, so that its staging memory is free again.
    pub(crate) async fn settle(&self) -> Result<(), RunnerError> {
        let (sender, done) = oneshot::channel();
        self.queue.on_submitted_work_done(move || {
            // Nobody listens any more where loading was dropped at its await.
            let _ = sender.send(());
        });
        self.told(done).await.ok_or_else(|| RunnerError::DeviceLost("it never finished its work".into()))
    }

    /// What a callback sends. A driver that loses its device may forget its callbacks: whoever waits looks for the loss as well.
    /// A sender that is dropped unused is a device that went away without a word.
    async fn told<T>(&self, told: oneshot::Receiver<T>) -> Option<T> {
        let mut told = pin!(told);
        poll_fn(|context| match told.as_mut().poll(context) {
            Poll::Pending if self.is_lost() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => Poll::Ready(result.ok()),
        })
        .await
    }
}

/// Unmaps on every path, also where the step is dropped while it waits: the next one then finds the buffer free.
struct Unmap<'a>(&'a wgpu::Buffer);

impl Drop for Unmap<'_> {
    fn drop(&mut self) {
        self.0.unmap();
    }
}
