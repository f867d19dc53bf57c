//! Waiting for the engine on a thread of one's own: whoever polls a future that waits for the GPU also drives the GPU.
//!
//! On `Pending` it sleeps in the driver until the submitted work is done.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use firstlight_engine::gpu::Awaited;

/// Runs `future` to its end, polling `device` whenever it waits.
///
/// A device that is lost resolves its pending callbacks with an error, so the future ends in that case too.
pub fn block_on_gpu<F: Future>(device: &wgpu::Device, future: F) -> F::Output {
    block_on(future, || drive(device))
}

/// Waits until the work submitted to `device` is done, and lets its callbacks run.
pub fn drive(device: &wgpu::Device) {
    wait(device, wgpu::PollType::wait_indefinitely());
}

/// The same, but waits no longer than for the submit that is awaited, where one is.
pub fn drive_awaited(device: &wgpu::Device, awaited: &Awaited) {
    let submission_index = awaited.take();
    wait(device, wgpu::PollType::Wait { submission_index, timeout: None });
}

fn wait(device: &wgpu::Device, until: wgpu::PollType) {
    // wgpu panics where the driver loses the device in mid-wait. By then the engine's callback has been told of the loss, and
    // the next poll of the future says so: a step that failed, not a process that died.
    let polled = catch_unwind(AssertUnwindSafe(|| device.poll(until)));
    if !matches!(polled, Ok(Ok(_))) {
        // Giving way keeps the loop from burning a core.
        std::thread::yield_now();
    }
}

/// Runs `future` to its end, calling `drive` whenever it waits.
pub fn block_on<F: Future>(future: F, mut drive: impl FnMut()) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        drive();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pending: u32) {
        let mut left = pending;
        let mut driven = 0;
        let future = std::future::poll_fn(move |_| match left {
            0 => Poll::Ready("done"),
            _ => {
                left -= 1;
                Poll::Pending
            }
        });
        assert_eq!(block_on(future, || driven += 1), "done");
        assert_eq!(driven, pending, "the device is driven once for each wait");
    }

    #[test]
    fn the_device_is_driven_exactly_while_the_future_waits() {
        for pending in [0, 1, 7] {
            check(pending);
        }
    }
}
