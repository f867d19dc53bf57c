//! A device for tests, and what drives it. A test that finds no adapter fails: it never passes by skipping.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use firstlight_engine::gpu::{Device, DeviceOptions};

/// Opens the first Vulkan, Metal or DX12 adapter.
pub fn open(options: DeviceOptions) -> Device {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let adapter = adapters.first().expect("no GPU adapter: `cargo xtask test` installs a software one");
    pollster::block_on(Device::open(adapter, 0, options)).expect("the adapter gives a device")
}

/// Runs `future` to its end, polling the device while it waits.
pub fn block_on<T>(device: &Device, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => {
                device.handle().poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
            }
        }
    }
}
