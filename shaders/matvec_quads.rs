//! `matvec_quads.wgsl`: few rows on a GPU, four columns a thread, the length of K split over the threads of a workgroup.
//!
//! Weights live in buffers. Never needs subgroups; where [`Variant::lanes`] are known to be one, they hand one row's sums
//! round without workgroup memory. Invariant: the order of summation is `matmul_tiled`'s, for every `tile_rows` and every
//! number of lanes: a row has the same bits from either kernel, and from `matvec_split`.

use crate::matmul::{Draft, SEGMENTS, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store};
use crate::quantise::Form;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Program};

/// Threads that share a segment.
const SEGMENT_LANES: u32 = 8;

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// What becomes of the product.
    pub store: Store,
    /// Whether there is a bias.
    pub bias: bool,
    /// Units of 64 along K.
    pub units: u32,
    /// Rows a thread: 1, 2, 4 or 8. The grid covers a multiple of it.
    pub tile_rows: u32,
    /// Neighbouring threads that are sure to be in one subgroup, in their order: a power of two. Below 16, or where subgroups
    /// are not to be used, no subgroup operation is called. It counts for one row: more rows are finished side by side.
    pub lanes: u32,
}

impl Variant {
    /// Segments that one subgroup holds for certain.
    fn near(self) -> u32 {
        if self.tile_rows == 1 { (self.lanes / SEGMENT_LANES).clamp(1, SEGMENTS) } else { 1 }
    }

    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let near = self.near();
        let (kernel, finish) = match near {
            1 => ("matvec_quads".to_string(), wgsl!("common/finish_scratch.wgsl")),
            _ => (format!("matvec_quads_{}", near * SEGMENT_LANES), wgsl!("common/finish_subgroup.wgsl")),
        };
        Draft {
            kernel: &kernel,
            text: wgsl!("matvec_quads.wgsl"),
            header: &[
                ("TM", self.tile_rows),
                ("TN", TILE_COLUMNS),
                ("SEGMENTS", SEGMENTS),
                ("NEAR", near),
                ("NEAR_OTHERS", near - 1),
                ("FAR", SEGMENTS - near),
                ("WORKGROUP", SEGMENTS * SEGMENT_LANES),
            ],
            snippets: &[wgsl!("common/dequantise.wgsl"), finish],
            format: self.format,
            home: Home::Buffer,
            x: Form::PLAIN,
            written: None,
            norm_width: 0,
            store: self.store,
            bias: self.bias,
            units: self.units,
            tile_rows: self.tile_rows,
            subgroups: near > 1,
        }
        .program()
    }

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        [groups, rows.div_ceil(self.tile_rows), 1]
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units.div_ceil(SEGMENTS) * 3
    }
}
