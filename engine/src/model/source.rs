//! Where weights come from: ranged reads over anything (a file, HTTP ranges, browser storage), and what a tensor is.

use std::future::Future;

use crate::error::LoadError;

/// A hostile file chooses what an error quotes; nobody reads more than this many characters of it.
const MAX_REASON_CHARS: usize = 400;

/// The file breaks its own format.
pub(super) fn malformed(name: &str, reason: impl AsRef<str>) -> LoadError {
    LoadError::Malformed { name: name.to_owned(), reason: shorten(reason.as_ref()) }
}

/// The file is well formed, and this engine does not run it.
pub(super) fn unsupported(name: &str, reason: impl AsRef<str>) -> LoadError {
    LoadError::Unsupported { name: name.to_owned(), reason: shorten(reason.as_ref()) }
}

fn shorten(reason: &str) -> String {
    match reason.char_indices().nth(MAX_REASON_CHARS) {
        Some((end, _)) => format!("{} ...", &reason[..end]),
        None => reason.to_owned(),
    }
}

/// Ranged reads. A host implements it; the engine never opens anything.
pub trait WeightSource {
    /// What to call it in an error.
    fn name(&self) -> String;
    /// Bytes in it.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Exactly `len` bytes from `offset`; the caller has checked both against [`WeightSource::len`].
    fn read(&self, offset: u64, len: usize) -> impl Future<Output = Result<Vec<u8>, LoadError>>;
}

/// Reads `len` bytes from `offset` after checking that they exist, and checks that the host gave exactly those.
pub(super) async fn read_range<S: WeightSource>(
    source: &S,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, LoadError> {
    let name = source.name();
    if offset.checked_add(len as u64).is_none_or(|end| end > source.len()) {
        let reason = format!("{len} bytes from {offset} were asked for, and it has {}", source.len());
        return Err(malformed(&name, reason));
    }
    let bytes = source.read(offset, len).await?;
    if bytes.len() != len {
        let reason = format!("{len} bytes from {offset} were asked for, and {} came", bytes.len());
        return Err(LoadError::Read { name, reason });
    }
    Ok(bytes)
}

/// A file that is already in memory: tests, and hosts that were handed one whole.
#[derive(Clone, Debug)]
pub struct MemorySource {
    /// What to call it in an error.
    pub name: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl WeightSource for MemorySource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let bytes = range.and_then(|range| self.bytes.get(range));
        bytes.map(<[u8]>::to_vec).ok_or_else(|| LoadError::Read {
            name: self.name.clone(),
            reason: format!("bytes {offset} + {len} lie beyond its {}", self.bytes.len()),
        })
    }
}

/// How a tensor's elements are stored. Blocks are of 32 elements (ggml's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// 4 bytes.
    F32,
    /// 2 bytes, IEEE.
    F16,
    /// 2 bytes, the upper half of an f32.
    Bf16,
    /// f16 scale d, 32 int8: w = d*q.
    Q8_0,
    /// f16 scale d, 32 nibbles (element i low in byte i, i+16 high): w = d*(q-8).
    Q4_0,
    /// f16 scale d, f16 minimum m, 32 nibbles: w = d*q + m.
    Q4_1,
}

impl TensorType {
    /// Elements of a block; 1 where there are none.
    pub fn block_len(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
        }
    }

    /// Bytes of a block (of an element, where there are no blocks).
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
        }
    }

    /// Bytes of a tensor of this type and shape; `None` where a dimension is 0 or a product overflows.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        if elements == 0 {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name that files and people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
        }
    }
}

/// Which part of the model a tensor is, whatever the file calls it. Layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorRole {
    /// `[vocab_size, hidden_size]`.
    Embedding,
    /// `[hidden_size]`.
    OutputNorm,
    /// `[vocab_size, hidden_size]`; absent where tied.
    Head,
    /// `[hidden_size]`.
    AttentionNorm(u32),
    /// `[num_heads * head_dim, hidden_size]`.
    Q(u32),
    /// `[num_kv_heads * head_dim, hidden_size]`.
    K(u32),
    /// `[num_kv_heads * head_dim, hidden_size]`.
    V(u32),
    /// `[hidden_size, num_heads * head_dim]`.
    O(u32),
    /// `[num_heads * head_dim]`.
    QBias(u32),
    /// `[num_kv_heads * head_dim]`.
    KBias(u32),
    /// `[num_kv_heads * head_dim]`.
    VBias(u32),
    /// `[hidden_size]`.
    OBias(u32),
    /// `[hidden_size]`.
    MlpNorm(u32),
    /// `[intermediate_size, hidden_size]`.
    Gate(u32),
    /// `[intermediate_size, hidden_size]`.
    Up(u32),
    /// `[hidden_size, intermediate_size]`.
    Down(u32),
    /// `[intermediate_size]`.
    GateBias(u32),
    /// `[intermediate_size]`.
    UpBias(u32),
    /// `[hidden_size]`.
    DownBias(u32),
    /// `[head_dim / 2]` divisors of the rotary frequencies (GGUF `rope_freqs`), instead of a scaling rule.
    RopeFreqs,
}

/// Where one tensor lies. Made only by a parser that has checked it against its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The file's own name for it.
    pub name: String,
    /// How its elements are stored.
    pub dtype: TensorType,
    /// Row-major, outermost first: a matrix is `[rows, columns]`.
    pub shape: Vec<u64>,
    /// Which of the checkpoint's sources holds it.
    pub source_idx: usize,
    /// First byte in that source.
    pub offset: u64,
    /// Bytes.
    pub num_bytes: u64,
}
