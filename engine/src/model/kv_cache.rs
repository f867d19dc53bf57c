//! The KV cache on the GPU: keys and values of every layer, in blocks, and how a block is copied to another.
//!
//! Never decides who owns a block. Invariant: a block is contiguous in each part and takes the same bytes in all.

use firstlight_shaders::Home;

use crate::error::DeviceError;
use crate::gpu::{Buffer, Copy, Device, Resource};

/// Keys and values of all layers.
pub struct KvCache {
    /// Keys and values of layer 0, then of layer 1, and so on; `[num_blocks][block_bytes]` each, in textures by texels.
    parts: Vec<Resource>,
    /// One block of every part, on its way: a copy may not have its source and its destination in one of them.
    passing: Buffer,
    block_bytes: u64,
}

/// Keys and values of one layer.
pub struct LayerCache<'a> {
    /// `[block][kv head][head_vec4s][block_size]` vec4s.
    pub keys: &'a Resource,
    /// `[block][kv head][block_size][head_vec4s]` vec4s.
    pub values: &'a Resource,
}

impl KvCache {
    /// Takes the memory: at `home`, `num_blocks` blocks of `block_bytes`, a multiple of 16, for keys and as many for values, in each of
    /// `num_layers` layers.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with what did not fit.
    pub async fn take(
        device: &Device,
        home: Home,
        num_layers: u32,
        num_blocks: u32,
        block_bytes: u64,
    ) -> Result<Self, DeviceError> {
        let cache_bytes = u64::from(num_blocks) * block_bytes;
        let mut parts = Vec::with_capacity(num_layers as usize * 2);
        for _ in 0..num_layers {
            for what in ["KV cache (keys of a layer)", "KV cache (values of a layer)"] {
                parts.push(device.at_home(home, what, cache_bytes).await?);
            }
        }
        let passing = device.passing("KV block on its way", u64::from(num_layers) * 2 * block_bytes).await?;
        Ok(Self { parts, passing, block_bytes })
    }

    /// The parts of layer `layer`, which must be below the number of layers.
    pub fn layer(&self, layer: u32) -> LayerCache<'_> {
        let keys = layer as usize * 2;
        LayerCache { keys: &self.parts[keys], values: &self.parts[keys + 1] }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(Resource::bytes).sum()
    }

    /// The copies that make block `to` equal to block `from` in every layer, for each (from, to), pair after pair: a later
    /// one may read what an earlier one wrote, or overwrite what it read. Block ids are below the number of blocks.
    pub fn copies(&self, pairs: impl ExactSizeIterator<Item = (u32, u32)>) -> Vec<Copy<'_>> {
        let bytes = self.block_bytes;
        let passing = |idx: usize| idx as u64 * bytes;
        let mut copies = Vec::with_capacity(pairs.len() * self.parts.len() * 2);
        for (from, to) in pairs {
            let at = |block: u32| u64::from(block) * bytes;
            for (idx, part) in self.parts.iter().enumerate() {
                copies.push(Copy::Out { from: (part, at(from)), to: (&self.passing, passing(idx)), bytes });
            }
            for (idx, part) in self.parts.iter().enumerate() {
                copies.push(Copy::In { from: (&self.passing, passing(idx)), to: (part, at(to)), bytes });
            }
        }
        copies
    }
}
