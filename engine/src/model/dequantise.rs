//! Turns stored elements into f32 on the CPU: for norms and biases, which are small, at load.
//!
//! Matrices never come here, they stay as stored. Invariant: the numbers are those of [`WeightFormat::dequantise_row`], the
//! one statement of the formats.

use firstlight_shaders::WeightFormat;

use super::source::TensorType;

/// Blocks turned at a time, so that a piece's elements are counted in a u32 however long the tensor.
const PIECE_BLOCKS: usize = 1 << 16;

/// The elements of `bytes`, in order. A last block that is cut off is left out: [`super::TensorInfo`] promises whole ones.
pub fn dequantise(dtype: TensorType, bytes: &[u8]) -> Vec<f32> {
    let format = WeightFormat::from(dtype);
    let (block_bytes, block_len) = (dtype.block_bytes() as usize, dtype.block_len() as usize);
    bytes
        .chunks(block_bytes * PIECE_BLOCKS)
        .flat_map(|piece| format.dequantise_row(piece, (piece.len() / block_bytes * block_len) as u32))
        .collect()
}
