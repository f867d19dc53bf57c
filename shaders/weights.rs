//! How a weight matrix lies on the GPU: the stored bits, put in the order in which the kernels visit them.
//!
//! A matrix `W[N][K]` has N columns (one an output) in groups of 32 and K in units of 64. A *line* is what 32 columns hold
//! at one place: 32 texels of 16 bytes, in the order of [`column_place`]. Line `((group*units + unit)*2 + block)*block_texels + t` is texel t of that block for
//! columns 32*group.. ; scale line `group*units + unit` holds the unit's scale words. N and K are padded with zero weights.
//!
//! Never changes a bit of a weight. Invariant: unpacked again, a packed matrix is the stored one.

use half::{bf16, f16};

use crate::{BindingKind, TexelFormat};

/// Columns of a group.
pub const GROUP_COLUMNS: u32 = 32;
/// Weights of a unit along K.
pub const UNIT: u32 = 64;
/// Weights of a block along K.
pub const BLOCK: u32 = 32;
/// Lines side by side in a row of a weight texture: 2,048 texels.
pub const TEXTURE_ROW_LINES: u32 = 64;

/// Where a group's column stands in its lines: four neighbours 8 apart, so that a thread which has every eighth place has
/// neighbours.
pub fn column_place(column: u32) -> u32 {
    column % 4 * 8 + column / 4 % 8
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// w = d*q, 8 bits.
    Q8_0,
    /// w = d*(q-8), 4 bits.
    Q4_0,
    /// w = d*q + m, 4 bits.
    Q4_1,
}

/// Where something lives that kernels read as texels of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// Storage buffers: what GPUs like.
    Buffer,
    /// Read-only storage textures: what CPU drivers like.
    Texture,
}

impl Home {
    /// How rows that products read are bound where they are read.
    pub(crate) fn x_binding(self) -> BindingKind {
        match self {
            Self::Buffer => BindingKind::Read,
            Self::Texture => BindingKind::ReadTexture(TexelFormat::Rgba32),
        }
    }

    /// The snippet that reads them.
    pub(crate) fn x_snippet(self) -> &'static str {
        match self {
            Self::Buffer => wgsl!("common/x_buffer.wgsl"),
            Self::Texture => wgsl!("common/x_texture.wgsl"),
        }
    }

    /// How they are bound where they are written.
    pub(crate) fn y_binding(self) -> BindingKind {
        match self {
            Self::Buffer => BindingKind::ReadWrite,
            Self::Texture => BindingKind::WriteTexture(TexelFormat::Rgba32),
        }
    }

    /// The snippet that writes them; it takes the constant `Y_BINDING`.
    pub(crate) fn y_snippet(self) -> &'static str {
        match self {
            Self::Buffer => wgsl!("common/y_buffer.wgsl"),
            Self::Texture => wgsl!("common/y_texture.wgsl"),
        }
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Texture => "texture",
        }
    }
}

impl WeightFormat {
    /// Every format.
    pub const ALL: [WeightFormat; 6] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Q4_1];

    /// Texels of 16 bytes in a block of 32 weights.
    pub fn block_texels(self) -> u32 {
        match self {
            Self::F32 => 8,
            Self::F16 | Self::Bf16 => 4,
            Self::Q8_0 => 2,
            Self::Q4_0 | Self::Q4_1 => 1,
        }
    }

    /// Words of scales in a unit of 64 weights; 0 where the format has none.
    pub fn scale_words(self) -> u32 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q8_0 | Self::Q4_0 => 1,
            Self::Q4_1 => 2,
        }
    }

    /// Stored bytes of a block of 32 weights.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::Bf16 => 64,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
        }
    }

    /// Weights that a file stores as one: 1, or a block.
    pub fn block_len(self) -> u64 {
        if self.is_blocked() { u64::from(BLOCK) } else { 1 }
    }

    /// Stored bytes of a tensor of this shape; `None` where a dimension is 0 or a product overflows.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let weights = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        let stored_as_one = self.block_bytes() as u64 * self.block_len() / u64::from(BLOCK);
        (weights > 0).then_some(weights / self.block_len())?.checked_mul(stored_as_one)
    }

    /// The name that files and people use.
    pub fn title(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
        }
    }

    /// Whether rows must be whole blocks.
    pub fn is_blocked(self) -> bool {
        self.scale_words() > 0
    }

    /// Lower-case name, as in the snippets' file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
        }
    }

    /// The snippet that unpacks this format.
    pub fn snippet(self) -> &'static str {
        match self {
            Self::F32 => wgsl!("common/weights_f32.wgsl"),
            Self::F16 => wgsl!("common/weights_f16.wgsl"),
            Self::Bf16 => wgsl!("common/weights_bf16.wgsl"),
            Self::Q8_0 => wgsl!("common/weights_q8_0.wgsl"),
            Self::Q4_0 => wgsl!("common/weights_q4_0.wgsl"),
            Self::Q4_1 => wgsl!("common/weights_q4_1.wgsl"),
        }
    }

    /// The snippets that unpack this format without shifts, beside [`Self::snippet`].
    pub(crate) fn masked_snippets(self) -> Vec<&'static str> {
        let nibbles = wgsl!("common/masked_nibbles.wgsl");
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => vec![wgsl!("common/masked_none.wgsl")],
            Self::Q8_0 => vec![wgsl!("common/masked_q8_0.wgsl")],
            Self::Q4_0 => vec![wgsl!("common/masked_q4_0.wgsl"), nibbles],
            Self::Q4_1 => vec![wgsl!("common/masked_q4_1.wgsl"), nibbles],
        }
    }

    /// Bytes of a stored row of `k` weights.
    pub fn row_bytes(self, k: u32) -> usize {
        if self.is_blocked() {
            (k as usize / BLOCK as usize) * self.block_bytes()
        } else {
            k as usize * self.block_bytes() / BLOCK as usize
        }
    }

    /// Splits a stored block into its 16-byte texels and its scale bytes (2 or 4, as stored).
    fn split_block(self, block: &[u8]) -> (&[u8], &[u8]) {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => (block, &[]),
            Self::Q8_0 | Self::Q4_0 => (&block[2..], &block[..2]),
            Self::Q4_1 => (&block[4..], &block[..4]),
        }
    }

    /// The weights of one stored row, `k` of them, as f32: the formats' definitions, for the CPU twins and for embeddings
    /// of norms and biases.
    pub fn dequantise_row(self, row: &[u8], k: u32) -> Vec<f32> {
        let f16_at = |b: &[u8], i: usize| f16::from_le_bytes([b[i], b[i + 1]]).to_f32();
        let mut out = Vec::with_capacity(k as usize);
        match self {
            Self::F32 => {
                out.extend(row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            }
            Self::F16 => out.extend(row.chunks_exact(2).map(|b| f16_at(b, 0))),
            Self::Bf16 => {
                out.extend(row.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()));
            }
            Self::Q8_0 => {
                for block in row.chunks_exact(34) {
                    let d = f16_at(block, 0);
                    out.extend(block[2..].iter().map(|&q| d * f32::from(q as i8)));
                }
            }
            Self::Q4_0 => {
                for block in row.chunks_exact(18) {
                    let d = f16_at(block, 0);
                    let q = |i: usize| f32::from(block[2 + i % 16] >> (4 * (i / 16)) & 15) - 8.0;
                    out.extend((0..32).map(|i| d * q(i)));
                }
            }
            Self::Q4_1 => {
                for block in row.chunks_exact(20) {
                    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
                    let q = |i: usize| f32::from(block[4 + i % 16] >> (4 * (i / 16)) & 15);
                    out.extend((0..32).map(|i| d * q(i) + m));
                }
            }
        }
        out.truncate(k as usize);
        out
    }
}

/// The size of a packed matrix, or of some of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedShape {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// Groups of 32 columns.
    pub groups: u32,
    /// Units of 64 weights along K.
    pub units: u32,
}

impl PackedShape {
    /// The shape that holds `n` columns of `k` weights.
    pub fn new(format: WeightFormat, n: u32, k: u32) -> Self {
        Self { format, groups: n.div_ceil(GROUP_COLUMNS), units: k.div_ceil(UNIT) }
    }

    /// Lines of weight texels.
    pub fn data_lines(self) -> u64 {
        u64::from(self.groups) * u64::from(self.units) * 2 * u64::from(self.format.block_texels())
    }

    /// Bytes of weight texels.
    pub fn data_bytes(self) -> u64 {
        self.data_lines() * u64::from(GROUP_COLUMNS) * 16
    }

    /// Lines of scale words; 0 where the format has none.
    pub fn scale_lines(self) -> u64 {
        if self.format.scale_words() == 0 { 0 } else { u64::from(self.groups) * u64::from(self.units) }
    }

    /// Bytes of scale words.
    pub fn scale_bytes(self) -> u64 {
        self.scale_lines() * u64::from(GROUP_COLUMNS) * 4 * u64::from(self.format.scale_words())
    }
}

/// Packs rows of a matrix: `row(i)` gives the stored bytes of column i of this piece, or `None` past the end (zero weights).
///
/// Returns the weight texels (`shape.data_bytes()`) and the scale words (`shape.scale_bytes()`).
pub fn pack<'a>(shape: PackedShape, k: u32, row: impl Fn(u32) -> Option<&'a [u8]>) -> (Vec<u8>, Vec<u8>) {
    let format = shape.format;
    let columns = GROUP_COLUMNS as usize;
    let texels = format.block_texels() as usize;
    let blocks = k.div_ceil(BLOCK) as usize;
    let mut data = vec![0u8; shape.data_bytes() as usize];
    let mut scales = vec![0u8; shape.scale_bytes() as usize];
    let scale_bytes = format.scale_words() as usize * 4;
    for column in 0..shape.groups * GROUP_COLUMNS {
        let Some(row) = row(column) else { continue };
        let (group, lane) = ((column / GROUP_COLUMNS) as usize, column_place(column) as usize);
        for (b, block) in row.chunks(format.block_bytes()).take(blocks).enumerate() {
            let (quants, scale) = format.split_block(block);
            let line = group * shape.units as usize * 2 + b;
            for (t, texel) in quants.chunks(16).enumerate() {
                let at = ((line * texels + t) * columns + lane) * 16;
                data[at..at + texel.len()].copy_from_slice(texel);
            }
            if !scale.is_empty() {
                let unit = group * shape.units as usize + b / 2;
                let at = (unit * columns + lane) * scale_bytes + (b % 2) * scale.len();
                scales[at..at + scale.len()].copy_from_slice(scale);
            }
        }
    }
    (data, scales)
}
