//! A forward pass as data: dispatches with their bind groups made at load, encoded into one compute pass a step.
//!
//! Never makes a bind group or takes memory in a step. Invariant: dispatches run in the order they were added.

use std::rc::Rc;

use super::{Buffer, Device, Kernel};
use crate::error::RunnerError;

/// What a dispatch's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every token of the batch.
    Rows,
    /// The sampled rows only.
    Samples,
}

/// One compiled shape of a dispatch: used from `min_rows` rows on.
pub struct Tile {
    /// The fewest rows it is used for.
    pub min_rows: u32,
    /// Rows a workgroup.
    pub tile_rows: u32,
    /// Workgroups in x.
    pub grid_x: u32,
    /// The pipeline.
    pub kernel: Rc<Kernel>,
}

/// One dispatch of the pass.
pub struct Dispatch {
    extent: Extent,
    tiles: Vec<Tile>,
    bound: wgpu::BindGroup,
    rows_in_x: bool,
}

impl Dispatch {
    /// A dispatch over (x, rows) with one of several tiles, which share their bindings; they come in rising `min_rows`, the
    /// first with 1.
    pub fn tiled(
        device: &Device,
        extent: Extent,
        tiles: Vec<Tile>,
        bindings: &[wgpu::BindingResource<'_>],
    ) -> Self {
        assert_eq!(tiles.first().map(|t| t.min_rows), Some(1), "some tile takes a single row");
        assert!(tiles.is_sorted_by_key(|t| t.min_rows), "tiles come in rising order");
        let bound = tiles[0].kernel.bind(device, bindings);
        Self { extent, tiles, bound, rows_in_x: false }
    }

    /// A dispatch over (x, rows) with one kernel, a workgroup a row.
    pub fn rows(
        device: &Device,
        extent: Extent,
        kernel: Rc<Kernel>,
        grid_x: u32,
        bindings: &[wgpu::BindingResource<'_>],
    ) -> Self {
        Self::tiled(device, extent, vec![Tile { min_rows: 1, tile_rows: 1, grid_x, kernel }], bindings)
    }

    /// A dispatch over rows alone: the grid's x is the number of rows.
    pub fn rows_in_x(
        device: &Device,
        extent: Extent,
        kernel: Rc<Kernel>,
        bindings: &[wgpu::BindingResource<'_>],
    ) -> Self {
        Self { rows_in_x: true, ..Self::rows(device, extent, kernel, 1, bindings) }
    }

    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32) {
        let tile = self.tiles.iter().rev().find(|t| t.min_rows <= rows).unwrap_or(&self.tiles[0]);
        pass.set_pipeline(tile.kernel.pipeline());
        pass.set_bind_group(0, &self.bound, &[]);
        if self.rows_in_x {
            pass.dispatch_workgroups(rows, 1, 1);
        } else {
            pass.dispatch_workgroups(tile.grid_x, rows.div_ceil(tile.tile_rows), 1);
        }
    }
}

/// GPU timestamps of a pass: one at either end.
pub struct Timestamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    period_ns: f32,
}

impl Timestamps {
    /// `None` where the device has no timestamps.
    pub fn new(device: &Device) -> Option<Self> {
        if !device.facts().timestamps {
            return None;
        }
        let queries = device.wgpu.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("step timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: 2,
        });
        let resolved = device.wgpu.create_buffer(&wgpu::BufferDescriptor {
            label: Some("step timestamps"),
            size: 16,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Some(Self { queries, resolved, period_ns: device.queue.get_timestamp_period() })
    }

    fn elapsed_ns(&self, bytes: &[u8]) -> Option<u64> {
        let stamp = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let ticks = stamp(8)?.checked_sub(stamp(0)?)?;
        Some((ticks as f64 * f64::from(self.period_ns)) as u64)
    }
}

/// Something a step copies back: the first `bytes` of `from`.
pub struct Wanted<'a> {
    /// The buffer to read.
    pub from: &'a Buffer,
    /// How much of it; a multiple of 4.
    pub bytes: u64,
}

/// Bytes at the start of the read-back buffer that hold the pass's timestamps.
pub const TIMESTAMP_BYTES: u64 = 16;

/// Encodes `dispatches` into one pass and one submit, reads `wanted` back through `readback`, one behind the other, and tells
/// the pass's time on the GPU's clock.
///
/// Dispatches over samples are left out where there are none.
pub async fn run(
    device: &Device,
    dispatches: &[Dispatch],
    (rows, samples): (u32, u32),
    wanted: &[Wanted<'_>],
    readback: &Buffer,
    timestamps: Option<&Timestamps>,
) -> Result<(Vec<u8>, Option<u64>), RunnerError> {
    let mut encoder = device.wgpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encode_pass(&mut encoder, dispatches, (rows, samples), timestamps);
    if let Some(t) = timestamps {
        encoder.resolve_query_set(&t.queries, 0..2, &t.resolved, 0);
        encoder.copy_buffer_to_buffer(&t.resolved, 0, &readback.wgpu, 0, TIMESTAMP_BYTES);
    }
    let mut end = TIMESTAMP_BYTES;
    for Wanted { from, bytes } in wanted.iter().filter(|w| w.bytes > 0) {
        encoder.copy_buffer_to_buffer(&from.wgpu, 0, &readback.wgpu, end, *bytes);
        end += bytes;
    }
    device.queue.submit([encoder.finish()]);
    let read = readback.read(device, end).await;
    // Why the device failed says more than that its buffer could not be read.
    if let Some(failure) = device.take_failure() {
        return Err(failure);
    }
    let mut bytes = read?;
    let data = bytes.split_off(TIMESTAMP_BYTES as usize);
    Ok((data, timestamps.and_then(|t| t.elapsed_ns(&bytes))))
}

fn encode_pass(
    encoder: &mut wgpu::CommandEncoder,
    dispatches: &[Dispatch],
    (rows, samples): (u32, u32),
    timestamps: Option<&Timestamps>,
) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
        label: Some("step"),
        timestamp_writes: timestamps.map(|t| wgpu::ComputePassTimestampWrites {
            query_set: &t.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }),
    });
    for dispatch in dispatches {
        match dispatch.extent {
            Extent::Rows => dispatch.encode(&mut pass, rows),
            Extent::Samples if samples > 0 => dispatch.encode(&mut pass, samples),
            Extent::Samples => {}
        }
    }
}

impl Device {
    /// Overwrites the first bytes of a buffer before the next pass.
    pub(crate) fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(&buffer.wgpu, offset, bytes);
    }

    /// Hands pending uploads to the driver, so that their staging memory is freed while a model loads.
    pub(crate) fn flush_uploads(&self) {
        self.queue.submit([]);
    }

    /// GPU memory that the driver's allocator holds now, in bytes, where the backend can say.
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.wgpu.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }
}
