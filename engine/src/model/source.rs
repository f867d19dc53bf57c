//! Where weights come from: ranged reads over anything (a file, HTTP ranges, browser storage), and what a tensor is.

use std::future::Future;

use firstlight_shaders::WeightFormat;

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

impl TensorRole {
    /// Whether it is a matrix that the products of a layer read.
    pub fn is_layer_matrix(self) -> bool {
        use TensorRole::{Down, Gate, K, O, Q, Up, V};
        matches!(self, Q(_) | K(_) | V(_) | O(_) | Gate(_) | Up(_) | Down(_))
    }
}

/// Where one tensor lies. Made only by a parser that has checked it against its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The file's own name for it.
    pub name: String,
    /// How its elements are stored.
    pub dtype: WeightFormat,
    /// Row-major, outermost first: a matrix is `[rows, columns]`.
    pub shape: Vec<u64>,
    /// Which of the checkpoint's sources holds it.
    pub source_idx: usize,
    /// First byte in that source.
    pub offset: u64,
    /// Bytes.
    pub num_bytes: u64,
}
