//! Lays out the dispatches of a pass: picks each kernel, compiles it, binds it once.
//!
//! Never runs in a step. Invariant: what it takes from the device is taken here and held by the bind groups.

use firstlight_shaders::matmul::{Params as MatmulParams, Store};
use firstlight_shaders::weights::{GROUP_COLUMNS, PackedShape};
use firstlight_shaders::{Home, Program, rms_norm};

use super::LoadFailure;
use super::matrix::Matrix;
use crate::gpu::{
    Binding, Buffer, Device, Dispatch, Extent, KernelCache, KernelChoice, MatmulShape, MatmulTile, Resource,
    Stage, Tile, Work,
};

/// A buffer of rows.
pub struct RowBuffer {
    /// `[rows][pitch]` floats.
    pub buffer: Resource,
    /// Where it lives.
    pub home: Home,
    /// Floats a row: a multiple of a unit of 64, zero behind the width that is written.
    pub pitch: u32,
    /// Floats of a row that count.
    pub width: u32,
    /// Rows.
    pub rows: u32,
}

/// Collects the dispatches of a pass.
pub struct Planner<'a> {
    device: &'a Device,
    kernels: &'a mut KernelCache,
    choice: KernelChoice,
    stage: Stage,
    dispatches: Vec<Dispatch>,
    products: Vec<MatmulShape>,
}

impl<'a> Planner<'a> {
    /// An empty pass, which begins with its embedding.
    pub fn new(device: &'a Device, kernels: &'a mut KernelCache, choice: KernelChoice) -> Self {
        Self { device, kernels, choice, stage: Stage::Embed, dispatches: Vec::new(), products: Vec::new() }
    }

    /// What is added from now on belongs to `stage`.
    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
    }

    fn add(&mut self, dispatch: Dispatch) {
        self.dispatches.push(dispatch.of(self.stage));
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The kernels in use.
    pub fn choice(&self) -> KernelChoice {
        self.choice
    }

    /// The dispatches so far, in order.
    pub fn take(&mut self) -> Vec<Dispatch> {
        std::mem::take(&mut self.dispatches)
    }

    /// The products that the pass computes, each once: what the self-test is to look at.
    pub fn products(&self) -> &[MatmulShape] {
        &self.products
    }

    /// Rows a buffer needs so that the largest tile never writes beyond it.
    pub fn row_capacity(&self, rows: u32) -> u32 {
        let tile = self.tiles().iter().map(|tile| tile.rows()).filter(|&(min_rows, _)| min_rows <= rows);
        rows.next_multiple_of(tile.map(|(_, tile_rows)| tile_rows).max().unwrap_or(1))
    }

    /// Row counts that between them dispatch every pipeline of a pass.
    pub fn warm_up_rows(&self) -> Vec<u32> {
        self.tiles().iter().map(|tile| tile.rows().0).collect()
    }

    fn tiles(&self) -> &'static [MatmulTile] {
        self.choice.matmul_tiles()
    }

    /// Takes a buffer of `rows` rows of `width` floats.
    pub async fn activation(&self, what: &str, rows: u32, width: u32) -> Result<RowBuffer, LoadFailure> {
        self.activation_at(Home::Buffer, what, rows, width).await
    }

    /// Takes `rows` rows of `width` floats which a kernel writes for products to read.
    pub async fn factor(&self, what: &str, rows: u32, width: u32) -> Result<RowBuffer, LoadFailure> {
        self.activation_at(self.choice.work_home, what, rows, width).await
    }

    async fn activation_at(
        &self,
        home: Home,
        what: &str,
        rows: u32,
        width: u32,
    ) -> Result<RowBuffer, LoadFailure> {
        let pitch = width.next_multiple_of(64);
        let bytes = u64::from(rows) * u64::from(pitch) * 4;
        Ok(RowBuffer { buffer: self.device.at_home(home, what, bytes).await?, home, pitch, width, rows })
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

    /// What was added last looks at positions, with this much to do for each.
    pub fn attends(&mut self, macs_per_position: u64) {
        if let Some(last) = self.dispatches.pop() {
            self.dispatches.push(last.with_work(Work { macs_per_position, ..Work::default() }));
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
        y: &RowBuffer,
    ) -> Result<(), LoadFailure> {
        let params = rms_norm::Params { x_pitch: x.pitch / 4, y_pitch: y.pitch / 4, eps };
        let program = rms_norm::program(x.width / 4, sample_rows.is_some(), y.home, self.choice.subgroups)?;
        // Without a gather the binding is there and never read.
        let rows = sample_rows.unwrap_or(gamma);
        let bindings = [x.buffer.binding(), gamma.binding(), rows.binding(), y.buffer.binding()];
        self.rows_in_x(extent, program, bytemuck::bytes_of(&params), &bindings).await
    }

    /// Adds `y[.., y_column..] (store)= x * matrix^T`, one dispatch a shard.
    pub async fn matmul(
        &mut self,
        extent: Extent,
        x: &RowBuffer,
        matrix: &Matrix,
        store: Store,
        y: &RowBuffer,
        y_column: u32,
    ) -> Result<(), LoadFailure> {
        let product = MatmulShape {
            format: matrix.format,
            store,
            bias: matrix.has_bias,
            units: matrix.units(),
            x_home: x.home,
        };
        if !self.products.contains(&product) {
            self.products.push(product);
        }
        for shard in &matrix.shards {
            // The fused activation writes one column for two.
            let first = if store == Store::Silu { shard.first_column / 2 } else { shard.first_column };
            let params = MatmulParams {
                x_pitch: x.pitch / 4,
                y_pitch: y.pitch,
                y_column: y_column + first,
                num_groups: shard.groups,
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
            let bindings =
                [x.buffer.binding(), shard.data.binding(), shard.scales.binding(), bias, y.buffer.binding()];
            let all = with_uniform(&uniform, &bindings);
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

fn with_uniform<'b>(uniform: &'b Buffer, bindings: &[Binding<'b>]) -> Vec<Binding<'b>> {
    std::iter::once(uniform.binding()).chain(bindings.iter().cloned()).collect()
}
