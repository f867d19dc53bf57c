//! Turns stored elements into f32 on the CPU: for norms and biases, which are small, at load.
//!
//! Matrices never come here, they stay as stored. Invariant: the same numbers as the weight snippets of the shaders.

use half::{bf16, f16};

use super::source::TensorType;

/// The elements of `bytes`, in order. A last block that is cut off is left out: [`super::TensorInfo`] promises whole ones.
pub fn dequantise(dtype: TensorType, bytes: &[u8]) -> Vec<f32> {
    let blocks = bytes.chunks_exact(dtype.block_bytes() as usize);
    match dtype {
        TensorType::F32 => blocks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        TensorType::F16 => blocks.map(half_at::<0>).collect(),
        TensorType::Bf16 => blocks.map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        TensorType::Q8_0 => blocks
            .flat_map(|block| {
                let scale = half_at::<0>(block);
                block[2..].iter().map(move |&byte| scale * f32::from(byte as i8))
            })
            .collect(),
        TensorType::Q4_0 => blocks
            .flat_map(|block| {
                let scale = half_at::<0>(block);
                nibbles(&block[2..]).map(move |q| scale * (q - 8.0))
            })
            .collect(),
        TensorType::Q4_1 => blocks
            .flat_map(|block| {
                let (scale, minimum) = (half_at::<0>(block), half_at::<2>(block));
                nibbles(&block[4..]).map(move |q| scale * q + minimum)
            })
            .collect(),
    }
}

fn half_at<const AT: usize>(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[AT], block[AT + 1]]).to_f32()
}

/// All low halves first, then all high ones.
fn nibbles(packed: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let low = packed.iter().map(|&byte| f32::from(byte & 15));
    low.chain(packed.iter().map(|&byte| f32::from(byte >> 4)))
}
