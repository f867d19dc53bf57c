//! A forward pass as data: dispatches with their bind groups made at load, encoded into one compute pass a step, or into one
//! for each stage where their times are wanted.
//!
//! Never makes a bind group or takes memory in a step. Invariant: copies come first, and all run in the order they were
//! added.

use std::rc::Rc;

use super::{Buffer, Device, Kernel, Resource};
use crate::error::RunnerError;

/// What a dispatch's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every token of the batch.
    Rows,
    /// The sampled rows only.
    Samples,
}

/// The part of a forward pass that a dispatch belongs to. The stages of a pass follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Token embedding.
    Embed,
    /// All layers.
    Layers,
    /// The output norm and the head.
    Head,
    /// Sampling.
    Sample,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Embed, Self::Layers, Self::Head, Self::Sample];
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

/// What a dispatch has to do at least, to hold its time against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Multiply-adds for each row.
    pub macs_per_row: u64,
    /// Multiply-adds for each position that a row looks at.
    pub macs_per_position: u64,
    /// Bytes of weights, which every dispatch reads once.
    pub weight_bytes: u64,
    /// Bytes read and written for each row; 0 where the weights' count alone.
    pub bytes_per_row: u64,
    /// Bytes of keys and values for each position that a sequence has.
    pub bytes_per_position: u64,
}

/// One dispatch of the pass.
pub struct Dispatch {
    stage: Stage,
    work: Work,
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
        Self { stage: Stage::Layers, work: Work::default(), extent, tiles, bound, rows_in_x: false }
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

    /// The dispatch as one of `stage`; without this it is one of the layers'.
    pub fn of(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// The dispatch, which has this much to do; without this, nothing that counts.
    pub fn with_work(self, work: Work) -> Self {
        Self { work, ..self }
    }

    /// The stage it belongs to.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What it has to do.
    pub fn work(&self) -> Work {
        self.work
    }

    /// The kernel that takes `rows` rows.
    pub fn kernel(&self, rows: u32) -> &Kernel {
        &self.tile(rows).kernel
    }

    fn tile(&self, rows: u32) -> &Tile {
        self.tiles.iter().rev().find(|t| t.min_rows <= rows).unwrap_or(&self.tiles[0])
    }

    /// Adds it to `pass` with one row, and once more for each kernel that never ran and takes `most_rows` or fewer.
    fn encode_first(&self, pass: &mut wgpu::ComputePass<'_>, most_rows: u32) {
        for (idx, tile) in self.tiles.iter().enumerate() {
            if tile.min_rows <= most_rows && (idx == 0 || !tile.kernel.has_run()) {
                tile.kernel.runs();
                self.encode(pass, tile.min_rows);
            }
        }
    }

    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32) {
        let tile = self.tile(rows);
        pass.set_pipeline(tile.kernel.pipeline());
        pass.set_bind_group(0, &self.bound, &[]);
        if self.rows_in_x {
            pass.dispatch_workgroups(rows, 1, 1);
        } else {
            pass.dispatch_workgroups(tile.grid_x, rows.div_ceil(tile.tile_rows), 1);
        }
    }
}

/// GPU timestamps of a pass: one at either end, or at either end of each of its parts.
pub struct Timestamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    period_ns: f32,
    bytes: u64,
}

/// Bytes of one timestamp.
const STAMP_BYTES: u64 = 8;

/// Bytes at the start of the read-back buffer that hold the timestamps of a pass in stages, two for each.
pub const TIMESTAMP_BYTES: u64 = 2 * Stage::ALL.len() as u64 * STAMP_BYTES;

/// Most compute passes that one query set has stamps for.
const MAX_PARTS: u32 = wgpu::QUERY_SET_MAX_QUERIES / 2;

impl Timestamps {
    /// For a whole pass, or one in stages; `None` where the device has no timestamps.
    pub fn new(device: &Device) -> Option<Self> {
        Self::of_parts(device, Stage::ALL.len() as u32)
    }

    /// For a pass in `parts` compute passes; `None` where the device has no timestamps, or not so many.
    pub fn of_parts(device: &Device, parts: u32) -> Option<Self> {
        if !device.facts().timestamps || parts > MAX_PARTS {
            return None;
        }
        let bytes = 2 * u64::from(parts) * STAMP_BYTES;
        let queries = device.wgpu.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("step timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * parts,
        });
        let resolved = device.wgpu.create_buffer(&wgpu::BufferDescriptor {
            label: Some("step timestamps"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Some(Self { queries, resolved, period_ns: device.queue.get_timestamp_period(), bytes })
    }

    /// Bytes at the start of the read-back buffer that hold the timestamps.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nanoseconds from stamp `from` to stamp `to`; `None` where the clock went back.
    fn between(&self, bytes: &[u8], from: usize, to: usize) -> Option<u64> {
        let stamp = |idx: usize| {
            let at = idx * STAMP_BYTES as usize;
            bytes.get(at..at + STAMP_BYTES as usize)?.try_into().ok().map(u64::from_le_bytes)
        };
        let ticks = stamp(to)?.checked_sub(stamp(from)?)?;
        Some((ticks as f64 * f64::from(self.period_ns)) as u64)
    }

    /// What the stamps of compute passes say that began with these dispatches, one after another.
    fn elapsed(&self, bytes: &[u8], parts: &[usize]) -> Elapsed {
        let last = (2 * parts.len()).saturating_sub(1);
        let part = |(idx, first): (usize, &usize)| Some((*first, self.between(bytes, 2 * idx, 2 * idx + 1)?));
        Elapsed {
            pass_ns: self.between(bytes, 0, last),
            parts: parts.iter().enumerate().filter_map(part).collect(),
        }
    }
}

/// How a pass is timed.
#[derive(Clone, Copy)]
pub enum Timing<'a> {
    /// Not at all.
    Off,
    /// As one compute pass with a stamp at either end.
    Whole(&'a Timestamps),
    /// As one compute pass for each stage, all in one submit. The cuts keep stages from overlapping, so this is slower.
    ByStage(&'a Timestamps),
    /// As one compute pass for each dispatch, all in one submit; slower still.
    ByDispatch(&'a Timestamps),
}

impl<'a> Timing<'a> {
    /// What it is timed with.
    pub fn timestamps(self) -> Option<&'a Timestamps> {
        match self {
            Self::Off => None,
            Self::Whole(t) | Self::ByStage(t) | Self::ByDispatch(t) => Some(t),
        }
    }

    /// Whether two neighbours are timed together.
    fn joins(self, a: &Dispatch, b: &Dispatch) -> bool {
        match self {
            Self::Off | Self::Whole(_) => true,
            Self::ByStage(_) => a.stage == b.stage,
            Self::ByDispatch(_) => false,
        }
    }
}

/// Time on the GPU's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elapsed {
    /// From the first stamp to the last.
    pub pass_ns: Option<u64>,
    /// Each part that ran, in order, by the index of its first dispatch: all of it, its stages or its dispatches.
    pub parts: Vec<(usize, u64)>,
}

/// Something a step copies back: the first `bytes` of `from`.
pub struct Wanted<'a> {
    /// The buffer to read.
    pub from: &'a Buffer,
    /// How much of it; a multiple of 4.
    pub bytes: u64,
}

/// Bytes that move on the GPU before the pass. All numbers are multiples of 16.
pub enum Copy<'a> {
    /// Out of a resource.
    Out {
        /// What is read, and where in it.
        from: (&'a Resource, u64),
        /// A buffer that is written, and where in it.
        to: (&'a Buffer, u64),
        /// How much.
        bytes: u64,
    },
    /// Into a resource.
    In {
        /// A buffer that is read, and where in it.
        from: (&'a Buffer, u64),
        /// What is written, and where in it.
        to: (&'a Resource, u64),
        /// How much.
        bytes: u64,
    },
}

/// What one submit does.
pub struct Pass<'a> {
    /// Copies, in this order, before anything else.
    pub copies: &'a [Copy<'a>],
    /// The dispatches, in this order. Those over samples are left out where there are none.
    pub dispatches: &'a [Dispatch],
    /// Tokens of the batch.
    pub rows: u32,
    /// Rows to sample from.
    pub samples: u32,
    /// What is read back.
    pub wanted: &'a [Wanted<'a>],
    /// How the dispatches are timed; copies are not.
    pub timing: Timing<'a>,
}

/// A pass that was submitted and not read yet.
pub struct Submitted {
    index: wgpu::SubmissionIndex,
    /// Bytes of stamps, and of stamps and what is wanted.
    stamp_bytes: u64,
    end: u64,
    /// The first dispatch of each compute pass.
    parts: Vec<usize>,
}

/// Encodes `pass` into one submit, and what is wanted of it into `readback`, one behind the other.
pub fn submit(device: &Device, pass: &Pass<'_>, readback: &Buffer) -> Submitted {
    let mut encoder = device.wgpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    for copy in pass.copies {
        match *copy {
            Copy::Out { from: (from, at), to, bytes } => from.copy_out(&mut encoder, at, to, bytes),
            Copy::In { from, to: (to, at), bytes } => to.copy_in(&mut encoder, at, from, bytes),
        }
    }
    let parts = encode(&mut encoder, pass);
    // Only stamps that were written may be resolved: a driver would wait for the others.
    let stamps = 2 * parts.len() as u32;
    let timestamps = pass.timing.timestamps();
    if let (Some(t), 1..) = (timestamps, stamps) {
        encoder.resolve_query_set(&t.queries, 0..stamps, &t.resolved, 0);
        let bytes = u64::from(stamps) * STAMP_BYTES;
        encoder.copy_buffer_to_buffer(&t.resolved, 0, &readback.wgpu, 0, bytes);
    }
    let stamp_bytes = timestamps.map_or(0, Timestamps::bytes);
    let mut end = stamp_bytes;
    for Wanted { from, bytes } in pass.wanted.iter().filter(|w| w.bytes > 0) {
        encoder.copy_buffer_to_buffer(&from.wgpu, 0, &readback.wgpu, end, *bytes);
        end += bytes;
    }
    let index = device.queue.submit([encoder.finish()]);
    Submitted { index, stamp_bytes, end, parts }
}

/// Waits for a pass that went to `readback` and shows `look` what was wanted of it, one behind the other, where it lies; tells
/// the time of its dispatches on the GPU's clock.
///
/// # Errors
/// The device is lost, out of memory, or refused a call.
pub async fn read(
    device: &Device,
    submitted: Submitted,
    timestamps: Option<&Timestamps>,
    readback: &Buffer,
    look: &mut dyn FnMut(&[u8]),
) -> Result<Elapsed, RunnerError> {
    let Submitted { index, stamp_bytes, end, parts } = submitted;
    device.awaited.set(index);
    let mut elapsed = Elapsed::default();
    let mut apart = |bytes: &[u8]| {
        let (stamps, wanted) = bytes.split_at(stamp_bytes as usize);
        elapsed = timestamps.map(|t| t.elapsed(stamps, &parts)).unwrap_or_default();
        look(wanted);
    };
    let read = readback.read(device, end, &mut apart).await;
    // Why the device failed says more than that its buffer could not be read.
    if let Some(failure) = device.take_failure() {
        return Err(failure);
    }
    read?;
    Ok(elapsed)
}

/// [`submit`] and [`read`], of the time alone.
///
/// # Errors
/// As [`read`].
pub async fn run(device: &Device, pass: &Pass<'_>, readback: &Buffer) -> Result<Elapsed, RunnerError> {
    let submitted = submit(device, pass, readback);
    read(device, submitted, pass.timing.timestamps(), readback, &mut |_| {}).await
}

/// Submits `dispatches` once, as if for a batch of one token and for a few, and waits for nothing: what a driver does at the
/// first dispatch of a kernel and at the first use of a resource, it does while the host goes on loading. A batch has at most
/// `most` tokens and sampled rows. What the kernels read is zeros and weights, what they write is written again by every step.
pub fn run_first(device: &Device, dispatches: &[Dispatch], most: (u32, u32)) {
    let mut encoder = device.wgpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for dispatch in dispatches {
            let most_rows = match dispatch.extent {
                Extent::Rows => most.0,
                Extent::Samples => most.1,
            };
            dispatch.encode_first(&mut pass, most_rows);
        }
    }
    device.queue.submit([encoder.finish()]);
}

/// Encodes the dispatches; gives back the first dispatch of each compute pass.
fn encode(encoder: &mut wgpu::CommandEncoder, pass: &Pass<'_>) -> Vec<usize> {
    let (mut parts, mut end) = (Vec::new(), 0);
    for part in pass.dispatches.chunk_by(|a, b| pass.timing.joins(a, b)) {
        let first = end;
        end += part.len();
        if part.iter().any(|dispatch| pass.extent(dispatch) > 0) {
            encode_compute_pass(encoder, part, pass, parts.len() as u32);
            parts.push(first);
        }
    }
    parts
}

fn encode_compute_pass(
    encoder: &mut wgpu::CommandEncoder,
    dispatches: &[Dispatch],
    pass: &Pass<'_>,
    idx: u32,
) {
    let timestamps = pass.timing.timestamps();
    let mut compute_pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
        label: Some("step"),
        timestamp_writes: timestamps.map(|t| wgpu::ComputePassTimestampWrites {
            query_set: &t.queries,
            beginning_of_pass_write_index: Some(2 * idx),
            end_of_pass_write_index: Some(2 * idx + 1),
        }),
    });
    for dispatch in dispatches {
        let rows = pass.extent(dispatch);
        if rows > 0 {
            dispatch.encode(&mut compute_pass, rows);
        }
    }
}

impl Pass<'_> {
    /// Rows of `dispatch` in this pass.
    pub fn extent(&self, dispatch: &Dispatch) -> u32 {
        match dispatch.extent {
            Extent::Rows => self.rows,
            Extent::Samples => self.samples,
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
