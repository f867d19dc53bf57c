//! The KV cache on the GPU: keys and values of every layer, in blocks, and how a block is copied to another.
//!
//! Never decides who owns a block. Invariant: a block is contiguous in each part, and takes the same bytes in all parts of keys,
//! and in all parts of values.

use firstlight_shaders::{Home, KvFormat};

use super::ModelConfig;

use crate::error::DeviceError;
use crate::gpu::{Buffer, Copy, Device, Resource};

/// Keys and values of all layers.
pub struct KvCache {
    /// Keys and values of layer 0, then of layer 1, and so on; `[num_blocks][bytes of a block]` each, in textures by texels.
    parts: Vec<Resource>,
    /// One block of every part, on its way: a copy may not have its source and its destination in one of them.
    passing: Buffer,
    block: BlockBytes,
}

/// Bytes of a block in one layer, multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBytes {
    /// Of its keys.
    pub keys: u64,
    /// Of its values.
    pub values: u64,
}

impl BlockBytes {
    /// Of blocks of `block_size` slots, a multiple of 8.
    pub fn of(config: &ModelConfig, format: KvFormat, block_size: u32) -> Self {
        let heads = u64::from(block_size) * u64::from(config.num_kv_heads);
        Self {
            keys: heads * format.key_bytes(config.head_dim),
            values: heads * format.value_bytes(config.head_dim),
        }
    }
}

/// Keys and values of one layer, as [`KvFormat`] stores them.
#[derive(Clone, Copy)]
pub struct LayerCache<'a> {
    /// `[block][kv head][cells][block_size]`.
    pub keys: &'a Resource,
    /// `[block][kv head][block_size][cells]`.
    pub values: &'a Resource,
}

impl KvCache {
    /// Takes the memory: at `home`, `num_blocks` blocks of `block` in each of `num_layers` layers.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with what did not fit.
    pub async fn take(
        device: &Device,
        home: Home,
        format: KvFormat,
        num_layers: u32,
        num_blocks: u32,
        block: BlockBytes,
    ) -> Result<Self, DeviceError> {
        let mut parts = Vec::with_capacity(num_layers as usize * 2);
        for _ in 0..num_layers {
            for (what, bytes) in
                [("KV cache (keys of a layer)", block.keys), ("KV cache (values of a layer)", block.values)]
            {
                let bytes = u64::from(num_blocks) * bytes;
                parts.push(device.at_home(home, format.texel(), what, bytes).await?);
            }
        }
        let passing = device
            .passing("KV block on its way", u64::from(num_layers) * (block.keys + block.values))
            .await?;
        Ok(Self { parts, passing, block })
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
        let BlockBytes { keys, values } = self.block;
        // For each part its bytes of a block, and where these pass.
        let places = || {
            let part = |(idx, part): (usize, _)| {
                let layer = (idx / 2) as u64 * (keys + values);
                if idx % 2 == 0 { (part, keys, layer) } else { (part, values, layer + keys) }
            };
            self.parts.iter().enumerate().map(part)
        };
        let mut copies = Vec::with_capacity(pairs.len() * self.parts.len() * 2);
        for (from, to) in pairs {
            for (part, bytes, passing) in places() {
                let from = (part, u64::from(from) * bytes);
                copies.push(Copy::Out { from, to: (&self.passing, passing), bytes });
            }
            for (part, bytes, passing) in places() {
                let to = (part, u64::from(to) * bytes);
                copies.push(Copy::In { from: (&self.passing, passing), to, bytes });
            }
        }
        copies
    }
}
