//! Lays out the dispatches of a pass: picks each kernel, compiles it, binds it once.
//!
//! Never runs in a step. Invariant: what it takes from the device is taken here and held by the bind groups.

use firstlight_shaders::matmul::{Params as MatmulParams, Store, squares_pitch};
use firstlight_shaders::weights::{GROUP_COLUMNS, PackedShape, UNIT};
use firstlight_shaders::{
    Activations, Form, Home, Program, TexelFormat, norm_parts, quantise, rms_norm, rope_kv_write,
};

use super::LoadFailure;
use super::kv_cache::LayerCache;
use super::llama::PassLimits;
use super::matrix::Matrix;
use crate::gpu::{
    Binding, Buffer, Device, Dispatch, Extent, KernelCache, KernelChoice, MatmulShape, MatmulTile, Resource,
    Stage, Tile, Work, run_first,
};
use crate::order::sort_by_number;

/// A buffer of rows.
pub struct RowBuffer {
    /// `[rows][pitch]` words.
    pub buffer: Resource,
    /// Where it lives.
    pub home: Home,
    /// How its numbers are stored.
    pub activations: Activations,
    /// Words a row: whole units of 64 numbers, zero behind the width that is written.
    pub pitch: u32,
    /// Numbers of a row that count.
    pub width: u32,
    /// Rows.
    pub rows: u32,
}

impl RowBuffer {
    /// Where it lives, and how its numbers are stored.
    pub fn form(&self) -> Form {
        Form { home: self.home, activations: self.activations }
    }
}

/// Rows that products read.
pub struct Factor {
    /// As they read them.
    pub rows: RowBuffer,
    /// As f32 before that, where whoever writes them cannot write anything else.
    plain: Option<RowBuffer>,
    /// Where the products do half of a norm: `[rows][squares_pitch(width)]` sums of squares, and what is added to their mean.
    norm: Option<(Buffer, f32)>,
}

impl Factor {
    /// What is to be written. Afterwards comes [`Planner::written`].
    pub fn target(&self) -> &RowBuffer {
        self.plain.as_ref().unwrap_or(&self.rows)
    }

    /// The width of the norm of which products do half; 0 where they do not.
    fn norm_width(&self) -> u32 {
        if self.norm.is_some() { self.rows.width } else { 0 }
    }
}

/// A norm of the residual stream, for the products behind it.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// `[width]`.
    pub gamma: &'a Buffer,
    /// Added to the mean square.
    pub eps: f32,
    /// Where the rows go.
    pub to: &'a Factor,
}

/// Where the product of q, k and v puts them.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// How heads and the cache are cut.
    pub rope: rope_kv_write::Variant,
    /// The batch's rows.
    pub rows: &'a Buffer,
    /// The table of rotary angles.
    pub angles: &'a Buffer,
    /// The layer's keys and values.
    pub cache: LayerCache<'a>,
}

impl<'a> Places<'a> {
    fn bindings(&self) -> [Binding<'a>; 4] {
        let LayerCache { keys, values } = self.cache;
        [self.rows.binding(), self.angles.binding(), keys.binding(), values.binding()]
    }
}

/// Collects the dispatches of a pass.
pub struct Planner<'a> {
    device: &'a Device,
    kernels: &'a mut KernelCache,
    choice: KernelChoice,
    stage: Stage,
    dispatches: Vec<Dispatch>,
    products: Vec<MatmulShape>,
    limits: PassLimits,
    num_run: usize,
}

impl<'a> Planner<'a> {
    /// An empty pass for batches within `limits`, which begins with its embedding.
    pub fn new(
        device: &'a Device,
        kernels: &'a mut KernelCache,
        choice: KernelChoice,
        limits: PassLimits,
    ) -> Self {
        Self {
            device,
            kernels,
            choice,
            stage: Stage::Embed,
            dispatches: Vec::new(),
            products: Vec::new(),
            limits,
            num_run: 0,
        }
    }

    /// What is added from now on belongs to `stage`.
    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
    }

    fn add(&mut self, dispatch: Dispatch) {
        self.dispatches.push(dispatch.of(self.stage));
    }

    /// Runs what was added since this was last called, so that the driver compiles it, and clears what it reads and writes,
    /// while the host reads and packs the weights that come next. Drivers that compute on the CPU make no pipeline meanwhile:
    /// it comes when most pipelines are made.
    pub fn run_new(&mut self) {
        let new = self.dispatches.get(self.num_run..).unwrap_or_default();
        if !new.is_empty() {
            run_first(self.device, new, (self.limits.max_batch_tokens, self.limits.max_num_seqs));
        }
        self.num_run = self.dispatches.len();
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The kernels in use.
    pub fn choice(&self) -> KernelChoice {
        self.choice
    }

    /// The dispatches so far, in the order of their stages, and within a stage in the order in which they were added.
    pub fn take(&mut self) -> Vec<Dispatch> {
        self.run_new();
        self.num_run = 0;
        let mut dispatches = std::mem::take(&mut self.dispatches);
        sort_by_number(&mut dispatches, |dispatch| dispatch.stage() as u64);
        dispatches
    }

    /// The products that the pass computes, each once: what the self-test is to look at.
    pub fn products(&self) -> &[MatmulShape] {
        &self.products
    }

    /// Rows a buffer needs so that the largest tile never writes beyond it.
    pub fn row_capacity(&self, rows: u32) -> u32 {
        rows.next_multiple_of(self.row_multiple(rows))
    }

    /// Rows of the largest tile that a batch of `rows` rows at most can have.
    pub fn row_multiple(&self, rows: u32) -> u32 {
        let tile = self.tiles().iter().map(|tile| tile.rows()).filter(|&(min_rows, _)| min_rows <= rows);
        tile.map(|(_, tile_rows)| tile_rows).max().unwrap_or(1)
    }

    fn tiles(&self) -> &'static [MatmulTile] {
        self.choice.matmul_tiles()
    }

    /// Takes a buffer of `rows` rows of `width` floats.
    pub async fn activation(&self, what: &str, rows: u32, width: u32) -> Result<RowBuffer, LoadFailure> {
        self.rows_at(Home::Buffer, Activations::F32, what, rows, width).await
    }

    /// Takes `rows` rows of `width` numbers for the products of the layers to read. `direct`: their writer writes them in any
    /// form, given subgroups.
    pub async fn factor(
        &self,
        what: &str,
        rows: u32,
        width: u32,
        direct: bool,
    ) -> Result<Factor, LoadFailure> {
        let KernelChoice { work_home, subgroups, activations, .. } = self.choice;
        let (home, plain) = match activations {
            Activations::F32 => (if direct { work_home } else { Home::Buffer }, None),
            Activations::I8 if direct && subgroups => (work_home, None),
            Activations::I8 => (work_home, Some(self.activation(what, rows, width).await?)),
        };
        let rows = self.rows_at(home, activations, what, rows, width).await?;
        Ok(Factor { rows, plain, norm: None })
    }

    /// Takes rows of the residual stream for the products behind a norm.
    pub async fn normed(&self, what: &str, rows: u32, width: u32, eps: f32) -> Result<Factor, LoadFailure> {
        let factor = self.factor(what, rows, width, true).await?;
        if !self.choice.fuses_norms() {
            return Ok(factor);
        }
        let bytes = u64::from(rows) * u64::from(squares_pitch(width)) * 4;
        let squares = self.device.storage("squares", bytes).await?;
        Ok(Factor { norm: Some((squares, eps)), ..factor })
    }

    /// Takes `rows` rows of `width` floats for the head to read.
    pub async fn plain_factor(&self, what: &str, rows: u32, width: u32) -> Result<Factor, LoadFailure> {
        let home = self.choice.work_home;
        let rows = self.rows_at(home, Activations::F32, what, rows, width).await?;
        Ok(Factor { rows, plain: None, norm: None })
    }

    async fn rows_at(
        &self,
        home: Home,
        activations: Activations,
        what: &str,
        rows: u32,
        width: u32,
    ) -> Result<RowBuffer, LoadFailure> {
        let pitch = activations.row_texels(width) * 4;
        let bytes = u64::from(rows) * u64::from(pitch) * 4;
        let buffer = self.device.at_home(home, TexelFormat::Rgba32, what, bytes).await?;
        Ok(RowBuffer { buffer, home, activations, pitch, width, rows })
    }

    /// Adds what turns a factor that was written as f32 into what products read, where that is something else.
    pub async fn written(&mut self, extent: Extent, factor: &Factor) -> Result<(), LoadFailure> {
        let (Some(plain), rows) = (&factor.plain, &factor.rows) else { return Ok(()) };
        let units = plain.width.div_ceil(UNIT);
        let params = quantise::Params { x_pitch: plain.pitch / 4, y_pitch: rows.pitch / 4 };
        let bindings = [plain.buffer.binding(), rows.buffer.binding()];
        let grid = quantise::workgroups(units, 1);
        let program = quantise::program(units, rows.home)?;
        self.rows(extent, program, grid[0], bytemuck::bytes_of(&params), &bindings).await?;
        self.moves(4 * (plain.pitch + rows.pitch));
        Ok(())
    }

    /// Adds a kernel that takes one row a workgroup row.
    pub async fn rows(
        &mut self,
        extent: Extent,
        program: Program,
        grid_x: u32,
        params: &[u8],
        bindings: &[Binding<'_>],
    ) -> Result<(), LoadFailure> {
        let kernel = self.kernels.get(self.device, program).await?;
        let uniform = self.device.uniform(kernel.name(), params).await?;
        let all = with_uniform(&uniform, bindings);
        self.add(Dispatch::rows(self.device, extent, kernel, grid_x, &all));
        Ok(())
    }

    /// What was added last looks at positions, with this much to do and to read for each.
    pub fn attends(&mut self, macs_per_position: u64, bytes_per_position: u64) {
        if let Some(last) = self.dispatches.pop() {
            let work = Work { macs_per_position, bytes_per_position, ..last.work() };
            self.dispatches.push(last.with_work(work));
        }
    }

    /// What was added last reads and writes this much for each of its rows.
    pub fn moves(&mut self, bytes_per_row: u32) {
        if let Some(last) = self.dispatches.pop() {
            let work = Work { bytes_per_row: u64::from(bytes_per_row), ..last.work() };
            self.dispatches.push(last.with_work(work));
        }
    }

    /// Adds a kernel whose grid is the rows alone.
    pub async fn rows_in_x(
        &mut self,
        extent: Extent,
        program: Program,
        params: &[u8],
        bindings: &[Binding<'_>],
    ) -> Result<(), LoadFailure> {
        let kernel = self.kernels.get(self.device, program).await?;
        let uniform = self.device.uniform(kernel.name(), params).await?;
        let all = with_uniform(&uniform, bindings);
        self.add(Dispatch::rows_in_x(self.device, extent, kernel, &all));
        Ok(())
    }

    /// Adds the norm of `x` (of its sampled rows, where given) into `y`.
    pub async fn norm(
        &mut self,
        extent: Extent,
        x: &RowBuffer,
        gamma: &Buffer,
        sample_rows: Option<&Buffer>,
        eps: f32,
        to: &Factor,
    ) -> Result<(), LoadFailure> {
        let y = to.target();
        let params = rms_norm::Params { x_pitch: x.pitch / 4, y_pitch: y.pitch / 4, eps };
        let gather = sample_rows.is_some();
        let program = rms_norm::program(x.width / 4, gather, y.home, self.choice.subgroups)?;
        // Without a gather the binding is there and never read.
        let rows = sample_rows.unwrap_or(gamma);
        let bindings = [x.buffer.binding(), gamma.binding(), rows.binding(), y.buffer.binding()];
        self.rows_in_x(extent, program, bytemuck::bytes_of(&params), &bindings).await?;
        self.moves(4 * (x.pitch + y.pitch));
        self.written(extent, to).await
    }

    /// Adds the norm of the residual stream before the first layer.
    pub async fn first_norm(&mut self, x: &RowBuffer, norm: Norm<'_>) -> Result<(), LoadFailure> {
        let Some((squares, _)) = &norm.to.norm else {
            return self.norm(Extent::Rows, x, norm.gamma, None, norm.eps, norm.to).await;
        };
        let y = &norm.to.rows;
        let params = norm_parts::Params { x_pitch: x.pitch / 4, y_pitch: y.pitch / 4 };
        let program = norm_parts::program(x.width, y.form())?;
        let bindings = [x.buffer.binding(), norm.gamma.binding(), squares.binding(), y.buffer.binding()];
        self.rows_in_x(Extent::Rows, program, bytemuck::bytes_of(&params), &bindings).await?;
        self.moves(4 * (x.pitch + y.pitch));
        Ok(())
    }

    /// Adds `y += x * matrix^T` on the residual stream, and the norm behind it, unless nothing reads that.
    pub async fn residual(
        &mut self,
        x: &Factor,
        matrix: &Matrix,
        y: &RowBuffer,
        norm: Norm<'_>,
        is_last: bool,
    ) -> Result<(), LoadFailure> {
        if norm.to.norm.is_some() {
            // One pipeline for all layers: the last one's norm is computed, and never read.
            return self.product(Extent::Rows, x, matrix, Store::AddNorm, (y, 0), Behind::Norm(norm)).await;
        }
        self.matmul(Extent::Rows, x, matrix, Store::Add, y, 0).await?;
        if is_last {
            return Ok(());
        }
        self.norm(Extent::Rows, y, norm.gamma, None, norm.eps, norm.to).await
    }

    /// Adds `y[.., y_column..] (store)= x * matrix^T`, one dispatch a shard.
    pub async fn matmul(
        &mut self,
        extent: Extent,
        x: &Factor,
        matrix: &Matrix,
        store: Store,
        y: &RowBuffer,
        y_column: u32,
    ) -> Result<(), LoadFailure> {
        self.product(extent, x, matrix, store, (y, y_column), Behind::Nothing).await
    }

    /// Adds the product of q, k and v, or of one of them from `y_column` on, that puts them where they belong.
    pub async fn placed(
        &mut self,
        x: &Factor,
        matrix: &Matrix,
        y: &RowBuffer,
        y_column: u32,
        places: Places<'_>,
    ) -> Result<(), LoadFailure> {
        let store = Store::RopeKv(places.rope);
        self.product(Extent::Rows, x, matrix, store, (y, y_column), Behind::Places(places)).await
    }

    /// The same, with what the store wants beside y.
    async fn product(
        &mut self,
        extent: Extent,
        x: &Factor,
        matrix: &Matrix,
        store: Store,
        (y, y_column): (&RowBuffer, u32),
        behind: Behind<'_>,
    ) -> Result<(), LoadFailure> {
        let norm = if let Behind::Norm(norm) = behind { Some(norm) } else { None };
        let written = match (store, norm) {
            (_, Some(norm)) => norm.to.rows.form(),
            (Store::Silu, None) => y.form(),
            _ => Form::PLAIN,
        };
        // The norm behind, or the half of one that x still wants.
        let norm_width = norm.map_or(x.norm_width(), |norm| norm.to.norm_width());
        let product = MatmulShape {
            format: matrix.format,
            store,
            bias: matrix.has_bias,
            units: matrix.units(),
            x: x.rows.form(),
            written,
            norm_width,
        };
        let halves = norm.map_or(&x.norm, |norm| &norm.to.norm).iter().map(|(squares, _)| squares.binding());
        let (gamma, z) =
            (norm.map(|norm| norm.gamma.binding()), norm.map(|norm| norm.to.rows.buffer.binding()));
        let places = if let Behind::Places(places) = behind { Some(places.bindings()) } else { None };
        let more: Vec<_> =
            gamma.into_iter().chain(halves).chain(z).chain(places.into_iter().flatten()).collect();
        if !self.products.contains(&product) {
            self.products.push(product);
        }
        for shard in &matrix.shards {
            // The fused activation writes one column for two.
            let first = if store == Store::Silu { shard.first_column / 2 } else { shard.first_column };
            let params = MatmulParams {
                x_pitch: x.rows.pitch / 4,
                y_pitch: y.pitch,
                y_column: y_column + first,
                num_groups: shard.groups,
                z_pitch: norm.map_or(0, |norm| norm.to.rows.pitch / 4),
                eps: x.norm.as_ref().map_or(0.0, |(_, eps)| *eps),
            };
            let mut tiles = Vec::new();
            for tile in self.tiles() {
                let (min_rows, tile_rows) = tile.rows();
                let (program, grid) = tile.program(product, self.choice, 1, shard.groups)?;
                let kernel = self.kernels.get(self.device, program).await?;
                tiles.push(Tile { min_rows, tile_rows, grid_x: grid[0], kernel });
            }
            let uniform = self.device.uniform("matmul", bytemuck::bytes_of(&params)).await?;
            let bias = if matrix.has_bias {
                matrix.bias.binding_from(u64::from(shard.first_column) * 4)
            } else {
                matrix.bias.binding()
            };
            let bindings = [
                x.rows.buffer.binding(),
                shard.data.binding(),
                shard.scales.binding(),
                bias,
                y.buffer.binding(),
            ];
            let all = with_uniform(&uniform, &[&bindings[..], &more].concat());
            let packed =
                PackedShape { groups: shard.groups, ..PackedShape::new(matrix.format, matrix.n, matrix.k) };
            let columns = (shard.groups * GROUP_COLUMNS).min(matrix.n - shard.first_column);
            let work = Work {
                macs_per_row: u64::from(columns) * u64::from(matrix.k),
                weight_bytes: packed.data_bytes() + packed.scale_bytes(),
                ..Work::default()
            };
            self.add(Dispatch::tiled(self.device, extent, tiles, &all).with_work(work));
        }
        Ok(())
    }
}

/// What a store wants beside y.
#[derive(Clone, Copy)]
enum Behind<'a> {
    Nothing,
    /// That of [`Store::AddNorm`].
    Norm(Norm<'a>),
    /// That of [`Store::RopeKv`].
    Places(Places<'a>),
}

fn with_uniform<'b>(uniform: &'b Buffer, bindings: &[Binding<'b>]) -> Vec<Binding<'b>> {
    std::iter::once(uniform.binding()).chain(bindings.iter().cloned()).collect()
}
