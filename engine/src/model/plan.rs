//! Lays out the dispatches of a pass: picks each kernel, compiles it, binds it once.
//!
//! Never runs in a step. Invariant: what it takes from the device is taken here and held by the bind groups.

use firstlight_shaders::matmul::{Params as MatmulParams, Store};
use firstlight_shaders::{ComposeError, Program, matmul_lanes, matmul_tiled, matvec_split, rms_norm};

use super::LoadFailure;
use super::matrix::Matrix;
use crate::gpu::{Binding, Buffer, Device, Dispatch, Extent, KernelCache, KernelChoice, MatmulFamily, Tile};

/// A buffer of rows.
pub struct RowBuffer {
    /// `[rows][pitch]` floats.
    pub buffer: Buffer,
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
    dispatches: Vec<Dispatch>,
}

/// One shape of the matrix kernel: from `min_rows` rows on, `tile_rows` a workgroup.
#[derive(Clone, Copy)]
enum MatmulTile {
    Lanes { min_rows: u32, tile_rows: u32 },
    Split { min_rows: u32, tile_rows: u32 },
    Tiled { min_rows: u32, tile_rows: u32 },
}

/// Each tile is a pipeline to compile, and on CPU drivers compilation dominates short runs: two.
const LANE_TILES: [MatmulTile; 2] =
    [MatmulTile::Lanes { min_rows: 1, tile_rows: 1 }, MatmulTile::Lanes { min_rows: 2, tile_rows: 4 }];

/// On GPUs few rows are bound by the weights' bytes, and many by arithmetic.
const SPLIT_TILES: [MatmulTile; 5] = [
    MatmulTile::Split { min_rows: 1, tile_rows: 1 },
    MatmulTile::Split { min_rows: 2, tile_rows: 4 },
    MatmulTile::Split { min_rows: 5, tile_rows: 8 },
    MatmulTile::Tiled { min_rows: 17, tile_rows: 32 },
    MatmulTile::Tiled { min_rows: 65, tile_rows: 64 },
];

impl MatmulTile {
    fn rows(self) -> (u32, u32) {
        match self {
            Self::Lanes { min_rows, tile_rows }
            | Self::Split { min_rows, tile_rows }
            | Self::Tiled { min_rows, tile_rows } => (min_rows, tile_rows),
        }
    }

    /// The kernel for `matrix` and its grid's width over `groups` groups.
    fn program(
        self,
        matrix: &Matrix,
        store: Store,
        choice: KernelChoice,
        groups: u32,
    ) -> Result<(Program, u32), ComposeError> {
        let (format, bias, units) = (matrix.format, matrix.has_bias, matrix.units());
        let (program, grid) = match self {
            Self::Lanes { tile_rows, .. } => {
                let (home, subgroups) = (choice.home, choice.subgroups);
                let v = matmul_lanes::Variant { format, home, store, bias, units, tile_rows, subgroups };
                (v.program()?, v.workgroups(1, groups))
            }
            Self::Split { tile_rows, .. } => {
                let v = matvec_split::Variant { format, store, bias, units, tile_rows };
                (v.program()?, v.workgroups(1, groups))
            }
            Self::Tiled { tile_rows, .. } => {
                let v = matmul_tiled::Variant { format, store, bias, units, tile_rows };
                (v.program()?, v.workgroups(1, groups))
            }
        };
        Ok((program, grid[0]))
    }
}

impl<'a> Planner<'a> {
    /// An empty pass.
    pub fn new(device: &'a Device, kernels: &'a mut KernelCache, choice: KernelChoice) -> Self {
        Self { device, kernels, choice, dispatches: Vec::new() }
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
        match self.choice.matmul {
            MatmulFamily::Lanes => &LANE_TILES,
            MatmulFamily::Split => &SPLIT_TILES,
        }
    }

    /// Takes a buffer of `rows` rows of `width` floats.
    pub async fn activation(&self, what: &str, rows: u32, width: u32) -> Result<RowBuffer, LoadFailure> {
        let pitch = width.next_multiple_of(64);
        let buffer = self.device.storage(what, u64::from(rows) * u64::from(pitch) * 4).await?;
        Ok(RowBuffer { buffer, pitch, width, rows })
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
        self.dispatches.push(Dispatch::rows(self.device, extent, kernel, grid_x, &all));
        Ok(())
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
        self.dispatches.push(Dispatch::rows_in_x(self.device, extent, kernel, &all));
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
        let program = rms_norm::program(x.width / 4, sample_rows.is_some(), self.choice.subgroups)?;
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
                let (program, grid_x) = tile.program(matrix, store, self.choice, shard.groups)?;
                let kernel = self.kernels.get(self.device, program).await?;
                tiles.push(Tile { min_rows, tile_rows, grid_x, kernel });
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
            self.dispatches.push(Dispatch::tiled(self.device, extent, tiles, &all));
        }
        Ok(())
    }
}

fn with_uniform<'b>(uniform: &'b Buffer, bindings: &[Binding<'b>]) -> Vec<Binding<'b>> {
    std::iter::once(uniform.binding()).chain(bindings.iter().cloned()).collect()
}
