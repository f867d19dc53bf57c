//! The KV cache on the GPU: keys and values of every layer, in blocks, and how a block is copied to another.
//!
//! Never decides who owns a block. Invariant: a block is contiguous in each buffer and takes the same bytes in all.

use crate::error::DeviceError;
use crate::gpu::{Buffer, BufferCopy, Device};

/// Keys and values of all layers.
pub struct KvCache {
    /// Keys and values of layer 0, then of layer 1, and so on; `[num_blocks][block_bytes]` each.
    buffers: Vec<Buffer>,
    /// One block of every buffer, on its way: a copy may not have its source and its destination in one buffer.
    passing: Buffer,
    block_bytes: u64,
}

/// Keys and values of one layer.
pub struct LayerCache<'a> {
    /// `[block][kv head][head_vec4s][block_size]` vec4s.
    pub keys: &'a Buffer,
    /// `[block][kv head][block_size][head_vec4s]` vec4s.
    pub values: &'a Buffer,
}

impl KvCache {
    /// Takes the memory: `num_blocks` blocks of `block_bytes`, a multiple of 4, for keys and as many for values, in each of
    /// `num_layers` layers.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with what did not fit.
    pub async fn take(
        device: &Device,
        num_layers: u32,
        num_blocks: u32,
        block_bytes: u64,
    ) -> Result<Self, DeviceError> {
        let cache_bytes = u64::from(num_blocks) * block_bytes;
        let mut buffers = Vec::with_capacity(num_layers as usize * 2);
        for _ in 0..num_layers {
            buffers.push(device.storage("KV cache (keys of a layer)", cache_bytes).await?);
            buffers.push(device.storage("KV cache (values of a layer)", cache_bytes).await?);
        }
        let passing = device.passing("KV block on its way", u64::from(num_layers) * 2 * block_bytes).await?;
        Ok(Self { buffers, passing, block_bytes })
    }

    /// The buffers of layer `layer`, which must be below the number of layers.
    pub fn layer(&self, layer: u32) -> LayerCache<'_> {
        let keys = layer as usize * 2;
        LayerCache { keys: &self.buffers[keys], values: &self.buffers[keys + 1] }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(Buffer::bytes).sum()
    }

    /// The copies that make block `to` equal to block `from` in every layer, for each (from, to), pair after pair: a later
    /// one may read what an earlier one wrote, or overwrite what it read. Block ids are below the number of blocks.
    pub fn copies(&self, pairs: impl ExactSizeIterator<Item = (u32, u32)>) -> Vec<BufferCopy<'_>> {
        let bytes = self.block_bytes;
        let passing = |idx: usize| idx as u64 * bytes;
        let mut copies = Vec::with_capacity(pairs.len() * self.buffers.len() * 2);
        for (from, to) in pairs {
            let at = |block: u32| u64::from(block) * bytes;
            for (idx, buffer) in self.buffers.iter().enumerate() {
                copies.push(BufferCopy {
                    from: (buffer, at(from)),
                    to: (&self.passing, passing(idx)),
                    bytes,
                });
            }
            for (idx, buffer) in self.buffers.iter().enumerate() {
                copies.push(BufferCopy { from: (&self.passing, passing(idx)), to: (buffer, at(to)), bytes });
            }
        }
        copies
    }
}
