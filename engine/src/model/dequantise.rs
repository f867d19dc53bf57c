//! Turns stored elements into f32 on the CPU: for norms and biases, which are small, at load.
//!
//! Matrices never come here, they stay as stored. Invariant: the numbers are those of [`WeightFormat::dequantise_row`], the
//! one statement of the formats.

use firstlight_shaders::WeightFormat;
use firstlight_shaders::weights::BLOCK;

/// Blocks turned at a time, so that a piece's elements are counted in a u32 however long the tensor.
const PIECE_BLOCKS: usize = 1 << 16;

/// The elements of `bytes`, in order. A last block that is cut off is left out: [`super::TensorInfo`] promises whole ones.
pub fn dequantise(dtype: WeightFormat, bytes: &[u8]) -> Vec<f32> {
    let elements = |piece: &[u8]| (piece.len() * BLOCK as usize / dtype.block_bytes()) as u32;
    let pieces = bytes.chunks(dtype.block_bytes() * PIECE_BLOCKS);
    pieces.flat_map(|piece| dtype.dequantise_row(piece, elements(piece))).collect()
}
