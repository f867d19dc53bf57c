//! The matrix kernels of a choice: which of them serves how many rows.
//!
//! Never binds or dispatches. Invariant: the tiles of a choice come in rising `min_rows`, the first with 1.

use firstlight_shaders::matmul::Store;
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::{
    ComposeError, Form, Program, WeightFormat, matmul_lanes, matmul_tiled, matvec_quads, matvec_split,
};

use super::{KernelChoice, MatmulFamily};

/// A product that a model computes: what tells one matrix pipeline from another, but for the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// What becomes of the product.
    pub store: Store,
    /// Whether there is a bias.
    pub bias: bool,
    /// Units of 64 along K.
    pub units: u32,
    /// Where x lives, and how.
    pub x: Form,
    /// Where what the store writes for another product lives, and how; it counts where 8 lanes write it together.
    pub written: Form,
    /// The width of the norm of which the product has a half; 0 without one.
    pub norm_width: u32,
}

/// One tile of the matrix kernel: from `min_rows` rows on, `tile_rows` a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulTile {
    /// `matmul_lanes`, or `matmul_pairs` where x comes in 8 bits.
    Lanes {
        /// The fewest rows it is used for.
        min_rows: u32,
        /// Rows a thread.
        tile_rows: u32,
    },
    /// `matvec_split`.
    Split {
        /// The fewest rows it is used for.
        min_rows: u32,
        /// Rows a thread.
        tile_rows: u32,
    },
    /// `matvec_quads`.
    Quads {
        /// The fewest rows it is used for.
        min_rows: u32,
        /// Rows a thread.
        tile_rows: u32,
    },
    /// `matmul_tiled`.
    Tiled {
        /// The fewest rows it is used for.
        min_rows: u32,
        /// Rows a workgroup.
        tile_rows: u32,
        /// Rows a thread.
        thread_rows: u32,
    },
}

/// Each tile is a pipeline to compile, and on CPU drivers compilation dominates short runs: three, so that neither one
/// answer nor two side by side compute rows of nobody.
const LANE_TILES: [MatmulTile; 3] = [
    MatmulTile::Lanes { min_rows: 1, tile_rows: 1 },
    MatmulTile::Lanes { min_rows: 2, tile_rows: 2 },
    MatmulTile::Lanes { min_rows: 3, tile_rows: 4 },
];

/// On GPUs few rows are bound by the weights' bytes, and many by arithmetic.
const SPLIT_TILES: [MatmulTile; 5] = [
    MatmulTile::Split { min_rows: 1, tile_rows: 1 },
    MatmulTile::Split { min_rows: 2, tile_rows: 4 },
    MatmulTile::Split { min_rows: 5, tile_rows: 8 },
    MatmulTile::Tiled { min_rows: 17, tile_rows: 32, thread_rows: 2 },
    MatmulTile::Tiled { min_rows: 65, tile_rows: 64, thread_rows: 4 },
];

/// Twice the rows a thread for many rows: a vec4 of workgroup memory then serves 10.7 multiplications of a vec4 instead of 8.
const QUAD_TILES: [MatmulTile; 5] = [
    MatmulTile::Quads { min_rows: 1, tile_rows: 1 },
    MatmulTile::Quads { min_rows: 2, tile_rows: 4 },
    MatmulTile::Quads { min_rows: 5, tile_rows: 8 },
    MatmulTile::Tiled { min_rows: 17, tile_rows: 32, thread_rows: 4 },
    MatmulTile::Tiled { min_rows: 33, tile_rows: 64, thread_rows: 8 },
];

impl MatmulTile {
    /// The fewest rows it is used for, and the rows that its grid covers a multiple of.
    pub fn rows(self) -> (u32, u32) {
        match self {
            Self::Lanes { min_rows, tile_rows }
            | Self::Split { min_rows, tile_rows }
            | Self::Quads { min_rows, tile_rows }
            | Self::Tiled { min_rows, tile_rows, .. } => (min_rows, tile_rows),
        }
    }

    /// The kernel for `shape`, and its grid for `rows` rows over `groups` groups of 32 columns.
    ///
    /// # Errors
    /// Our bug: the text could not be put together.
    pub fn program(
        self,
        shape: MatmulShape,
        choice: KernelChoice,
        rows: u32,
        groups: u32,
    ) -> Result<(Program, [u32; 3]), ComposeError> {
        let MatmulShape { format, store, bias, units, x, written, norm_width } = shape;
        Ok(match self {
            Self::Lanes { tile_rows, .. } => {
                let (home, subgroups) = (choice.home, choice.subgroups);
                let v = matmul_lanes::Variant {
                    format,
                    home,
                    x,
                    written,
                    norm_width,
                    store,
                    bias,
                    units,
                    tile_rows,
                    subgroups,
                    quads: choice.quads,
                };
                (v.program()?, v.workgroups(rows, groups))
            }
            Self::Split { tile_rows, .. } => {
                let v = matvec_split::Variant { format, store, bias, units, tile_rows };
                (v.program()?, v.workgroups(rows, groups))
            }
            Self::Quads { tile_rows, .. } => {
                let lanes = choice.matmul.lanes();
                let v = matvec_quads::Variant { format, store, bias, units, tile_rows, lanes };
                (v.program()?, v.workgroups(rows, groups))
            }
            Self::Tiled { tile_rows, thread_rows, .. } => {
                // Half precision wants the accumulators of many rows a thread.
                let arithmetic = choice.tile_arithmetic;
                let thread_rows = if arithmetic == Arithmetic::F16 { tile_rows / 8 } else { thread_rows };
                let v =
                    matmul_tiled::Variant { format, store, bias, units, tile_rows, thread_rows, arithmetic };
                (v.program()?, v.workgroups(rows, groups))
            }
        })
    }
}

impl KernelChoice {
    /// The tiles of this choice's matrix kernels.
    pub fn matmul_tiles(self) -> &'static [MatmulTile] {
        match self.matmul {
            MatmulFamily::Lanes => &LANE_TILES,
            MatmulFamily::Split => &SPLIT_TILES,
            MatmulFamily::Quads { .. } => &QUAD_TILES,
        }
    }
}
