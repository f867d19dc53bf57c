//! Weight matrices on the GPU: read from the checkpoint in pieces, packed, and uploaded at home.
//!
//! Never changes a bit of a weight. Invariant: a matrix larger than a binding is several shards of whole column groups.

use firstlight_shaders::TexelFormat;
use firstlight_shaders::weights::{GROUP_COLUMNS, Home, PackedShape, WeightFormat, pack};

use super::{Checkpoint, LoadFailure, LoadProgress, TensorInfo, WeightSource, dequantise};
use crate::error::LoadError;
use crate::gpu::{Buffer, Device, LineTexture, Resource};

/// Some of a matrix's column groups, within one binding.
pub struct Shard {
    /// First column.
    pub first_column: u32,
    /// Groups of 32 columns.
    pub groups: u32,
    /// Weight texels.
    pub data: Resource,
    /// Scale words; a dummy where the format has none.
    pub scales: Resource,
}

/// A weight matrix, packed.
pub struct Matrix {
    /// How its weights are stored.
    pub format: WeightFormat,
    /// Columns (outputs).
    pub n: u32,
    /// Weights a column (inputs).
    pub k: u32,
    /// Its pieces, in column order.
    pub shards: Vec<Shard>,
    /// One number a column of the padded matrix, if any part has a bias; a dummy otherwise.
    pub bias: Buffer,
    /// Whether `bias` counts.
    pub has_bias: bool,
}

impl Matrix {
    /// Units of 64 along K.
    pub fn units(&self) -> u32 {
        PackedShape::new(self.format, self.n, self.k).units
    }
}

/// A tensor that gives some of a matrix's columns.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The weights, `[rows, k]`.
    pub weight: &'a TensorInfo,
    /// The bias, `[rows]`.
    pub bias: Option<&'a TensorInfo>,
}

/// Which columns of a matrix come from where: `column -> (part, row)`, `None` for a column of zeros.
pub type Columns<'a> = dyn Fn(u32) -> Option<(usize, u32)> + 'a;

/// Columns read and packed at a time: whole rows of a texture whatever the format, and a few MiB.
const PIECE_GROUPS: u32 = 64;

/// Bytes that may wait in staging memory while the driver compiles: beyond them loading waits for the device, so that a
/// large model is never in memory twice.
const MAX_BYTES_IN_FLIGHT: u64 = 256 << 20;

/// Loads matrices of one checkpoint onto one device.
pub struct MatrixLoader<'a, S> {
    /// Where the weights are.
    pub checkpoint: &'a Checkpoint<S>,
    /// Where they go.
    pub device: &'a Device,
    /// Where weights live on this device.
    pub home: Home,
    /// Called after each piece.
    pub progress: &'a mut dyn FnMut(LoadProgress),
    /// Bytes read so far.
    pub bytes_done: u64,
    /// GPU bytes taken so far.
    pub bytes_resident: u64,
    /// Bytes uploaded since the device was last waited for.
    pub bytes_in_flight: u64,
}

impl<S: WeightSource> MatrixLoader<'_, S> {
    /// Loads `n` columns of `parts`, all of one type, in the order that `columns` gives.
    pub async fn load(
        &mut self,
        what: &str,
        parts: &[Part<'_>],
        n: u32,
        columns: &Columns<'_>,
    ) -> Result<Matrix, LoadFailure> {
        let format = parts[0].weight.dtype;
        let k = parts[0].weight.shape[1] as u32;
        let whole = PackedShape::new(format, n, k);
        let per_shard = self.groups_per_shard(what, whole)?;
        let mut shards = Vec::new();
        let mut first_group = 0;
        while first_group < whole.groups {
            let groups = per_shard.min(whole.groups - first_group);
            shards.push(
                self.load_shard(what, parts, k, PackedShape { groups, ..whole }, first_group, columns)
                    .await?,
            );
            first_group += groups;
        }
        let (bias, has_bias) = self.load_bias(what, parts, whole.groups * GROUP_COLUMNS, columns).await?;
        Ok(Matrix { format, n, k, shards, bias, has_bias })
    }

    /// A vector of `width` numbers as f32.
    pub async fn vector(&mut self, what: &str, info: &TensorInfo) -> Result<Buffer, LoadFailure> {
        let values = self.read_vector(info).await?;
        self.bytes_resident += values.len() as u64 * 4;
        Ok(self.device.storage_with(what, bytemuck::cast_slice(&values)).await?)
    }

    /// The numbers of a small tensor.
    pub async fn read_vector(&mut self, info: &TensorInfo) -> Result<Vec<f32>, LoadFailure> {
        let bytes = self.checkpoint.read(info, 0, info.num_bytes as usize).await?;
        self.bytes_done += info.num_bytes;
        Ok(dequantise(info.dtype, &bytes))
    }

    fn groups_per_shard(&self, what: &str, whole: PackedShape) -> Result<u32, LoadFailure> {
        let one = PackedShape { groups: 1, ..whole };
        let most = match self.home {
            Home::Buffer => self.device.facts().max_binding_bytes / one.data_bytes(),
            Home::Texture => LineTexture::max_lines(self.device) / one.data_lines(),
        };
        let most = most.min(u64::from(self.device.facts().max_workgroups));
        // Whole pieces, so that every piece starts a row of the texture.
        let pieces = most / u64::from(PIECE_GROUPS);
        if pieces == 0 && most < u64::from(whole.groups) {
            return Err(LoadFailure::Load(LoadError::Unsupported {
                name: what.to_string(),
                reason: format!(
                    "{PIECE_GROUPS} groups of 32 columns take {} bytes, more than the adapter binds at once",
                    one.data_bytes() * u64::from(PIECE_GROUPS)
                ),
            }));
        }
        Ok(u32::try_from(pieces * u64::from(PIECE_GROUPS))
            .unwrap_or(u32::MAX)
            .max(whole.groups.min(PIECE_GROUPS)))
    }

    async fn load_shard(
        &mut self,
        what: &str,
        parts: &[Part<'_>],
        k: u32,
        shape: PackedShape,
        first_group: u32,
        columns: &Columns<'_>,
    ) -> Result<Shard, LoadFailure> {
        let (data, scales) = self.reserve(what, shape).await?;
        self.bytes_resident += shape.data_bytes() + shape.scale_bytes();
        let mut piece = 0;
        while piece < shape.groups {
            let groups = PIECE_GROUPS.min(shape.groups - piece);
            let first_column = (first_group + piece) * GROUP_COLUMNS;
            let sources = self.read_rows(parts, first_column, groups * GROUP_COLUMNS, columns).await?;
            let row_bytes = shape.format.row_bytes(k);
            let piece_shape = PackedShape { groups, ..shape };
            let (texels, words) = pack(piece_shape, k, |column| {
                let (part, row) = columns(first_column + column)?;
                let (first_row, bytes) = &sources[part];
                bytes.get((row - first_row) as usize * row_bytes..)?.get(..row_bytes)
            });
            let before = PackedShape { groups: piece, ..shape };
            self.upload(&data, &texels, before.data_lines(), before.data_bytes());
            self.upload(&scales, &words, before.scale_lines(), before.scale_bytes());
            self.device.flush_uploads();
            self.wait_for_room((texels.len() + words.len()) as u64).await?;
            (self.progress)(LoadProgress {
                bytes_done: self.bytes_done.min(self.checkpoint.total_bytes()),
                bytes_total: self.checkpoint.total_bytes(),
            });
            piece += groups;
        }
        Ok(Shard { first_column: first_group * GROUP_COLUMNS, groups: shape.groups, data, scales })
    }

    /// Counts `bytes` as uploaded, and waits for the device where they are too many.
    async fn wait_for_room(&mut self, bytes: u64) -> Result<(), LoadFailure> {
        self.bytes_in_flight += bytes;
        if self.bytes_in_flight > MAX_BYTES_IN_FLIGHT {
            self.device.settle().await?;
            self.bytes_in_flight = 0;
        }
        Ok(())
    }

    async fn reserve(&self, what: &str, shape: PackedShape) -> Result<(Resource, Resource), LoadFailure> {
        Ok(match self.home {
            Home::Buffer => (
                Resource::Buffer(self.device.storage(what, shape.data_bytes()).await?),
                Resource::Buffer(self.device.storage(what, shape.scale_bytes()).await?),
            ),
            Home::Texture => {
                let scale =
                    if shape.format.scale_words() == 2 { TexelFormat::Rg32 } else { TexelFormat::R32 };
                let data = self.device.line_texture(what, TexelFormat::Rgba32, shape.data_lines()).await?;
                let scales = self.device.line_texture(what, scale, shape.scale_lines()).await?;
                (Resource::Texture(data), Resource::Texture(scales))
            }
        })
    }

    fn upload(&self, to: &Resource, bytes: &[u8], first_line: u64, first_byte: u64) {
        match to {
            Resource::Buffer(buffer) if !bytes.is_empty() => self.device.write(buffer, first_byte, bytes),
            Resource::Texture(texture) if !bytes.is_empty() => texture.write(self.device, first_line, bytes),
            _ => {}
        }
    }

    /// For each part, the rows that some columns need, read in one go: `(first row, bytes)`.
    async fn read_rows(
        &mut self,
        parts: &[Part<'_>],
        first_column: u32,
        num_columns: u32,
        columns: &Columns<'_>,
    ) -> Result<Vec<(u32, Vec<u8>)>, LoadFailure> {
        let mut ranges: Vec<Option<(u32, u32)>> = vec![None; parts.len()];
        for column in first_column..first_column + num_columns {
            if let Some((part, row)) = columns(column) {
                let range = ranges[part].get_or_insert((row, row));
                *range = (range.0.min(row), range.1.max(row));
            }
        }
        let mut sources = Vec::new();
        for (part, range) in parts.iter().zip(ranges) {
            let Some((first, last)) = range else {
                sources.push((0, Vec::new()));
                continue;
            };
            let row_bytes = part.weight.dtype.row_bytes(part.weight.shape[1] as u32) as u64;
            let len = (u64::from(last - first) + 1) * row_bytes;
            let bytes = self.checkpoint.read(part.weight, u64::from(first) * row_bytes, len as usize).await?;
            self.bytes_done += len;
            sources.push((first, bytes));
        }
        Ok(sources)
    }

    async fn load_bias(
        &mut self,
        what: &str,
        parts: &[Part<'_>],
        padded: u32,
        columns: &Columns<'_>,
    ) -> Result<(Buffer, bool), LoadFailure> {
        if parts.iter().all(|part| part.bias.is_none()) {
            return Ok((self.device.storage(what, 16).await?, false));
        }
        let mut biases = Vec::new();
        for part in parts {
            biases.push(match part.bias {
                Some(info) => self.read_vector(info).await?,
                None => Vec::new(),
            });
        }
        let bias: Vec<f32> = (0..padded)
            .map(|column| {
                let (part, row) = columns(column).unwrap_or((0, u32::MAX));
                biases[part].get(row as usize).copied().unwrap_or(0.0)
            })
            .collect();
        Ok((self.device.storage_with(what, bytemuck::cast_slice(&bias)).await?, true))
    }
}
