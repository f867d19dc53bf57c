//! A model of random weights, written as a GGUF file: the shape of a published one, and nothing to say.
//!
//! Never holds more of it in memory than a piece. Invariant: a file under its own name is whole, and the same on every
//! machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Sizes of a model of the Llama family, with tied embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it is called.
    pub name: &'static str,
    hidden: u64,
    inner: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    vocab: u64,
}

/// Llama 3.2 1B: 1.24 billion weights.
pub const LARGE: Shape = Shape {
    name: "random-1b",
    hidden: 2048,
    inner: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    vocab: 128_256,
};

/// As wide as drivers that compute on the CPU can take in seconds: 94 million weights.
pub const SMALL: Shape =
    Shape { name: "random-94m", hidden: 1024, inner: 4096, layers: 4, heads: 16, kv_heads: 4, vocab: 32_000 };

/// Bytes of the head's dimension and of the context; neither is what is measured.
const HEAD_DIM: u64 = 64;
const CONTEXT: u32 = 2048;

const ALIGNMENT: u64 = 32;
/// ggml's numbers of types.
const F32: u32 = 0;
const Q4_0: u32 = 2;
/// Weights of a Q4_0 block, and its bytes.
const BLOCK: u64 = 32;
const BLOCK_BYTES: u64 = 18;
/// 0.0043 as half float: with codes from -8 to 7 a deviation of 0.02, as models are initialised.
const SCALE: [u8; 2] = 0x1c66_u16.to_le_bytes();

struct Tensor {
    name: String,
    /// Fastest first.
    dims: Vec<u64>,
    kind: u32,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let weights: u64 = self.dims.iter().product();
        if self.kind == F32 { weights * 4 } else { weights / BLOCK * BLOCK_BYTES }
    }
}

impl Shape {
    fn tensors(self) -> Vec<Tensor> {
        let matrix = |name: String, rows, columns| Tensor { name, dims: vec![columns, rows], kind: Q4_0 };
        let norm = |name: String| Tensor { name, dims: vec![self.hidden], kind: F32 };
        let (q_width, kv_width) = (self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM);
        let mut tensors = vec![
            matrix("token_embd.weight".into(), self.vocab, self.hidden),
            norm("output_norm.weight".into()),
        ];
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            tensors.extend([
                norm(name("attn_norm")),
                matrix(name("attn_q"), q_width, self.hidden),
                matrix(name("attn_k"), kv_width, self.hidden),
                matrix(name("attn_v"), kv_width, self.hidden),
                matrix(name("attn_output"), self.hidden, q_width),
                norm(name("ffn_norm")),
                matrix(name("ffn_gate"), self.inner, self.hidden),
                matrix(name("ffn_up"), self.inner, self.hidden),
                matrix(name("ffn_down"), self.hidden, self.inner),
            ]);
        }
        tensors
    }

    fn header(self, tensors: &[Tensor]) -> Vec<u8> {
        let mut pairs = Pairs::default();
        pairs.text("general.architecture", "llama");
        pairs.text("general.name", self.name);
        pairs.number("llama.context_length", CONTEXT);
        pairs.number("llama.embedding_length", self.hidden as u32);
        pairs.number("llama.block_count", self.layers as u32);
        pairs.number("llama.feed_forward_length", self.inner as u32);
        pairs.number("llama.attention.head_count", self.heads as u32);
        pairs.number("llama.attention.head_count_kv", self.kv_heads as u32);
        pairs.number("llama.vocab_size", self.vocab as u32);
        pairs.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
        pairs.float("llama.rope.freq_base", 500_000.0);
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(pairs.count.to_le_bytes());
        out.extend(pairs.bytes);
        let mut offset = 0u64;
        for tensor in tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }

    /// Writes the model to `path`, unless it lies there already.
    ///
    /// # Errors
    /// In a sentence: no room, no right to write.
    pub fn ensure(self, path: &Path) -> Result<(), String> {
        let tensors = self.tensors();
        let header = self.header(&tensors);
        let data: u64 = tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(ALIGNMENT)).sum();
        let whole = header.len() as u64 + data;
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == whole) {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            format!("{} with its {} MB cannot be written: {error}", path.display(), whole / 1_000_000)
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let unfinished = path.with_extension("part");
        let file = File::create(&unfinished).map_err(failed)?;
        write(file, &header, &tensors).map_err(failed)?;
        std::fs::rename(&unfinished, path).map_err(failed)
    }
}

fn write(file: File, header: &[u8], tensors: &[Tensor]) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(header)?;
    let random = random_blocks();
    let ones = 1f32.to_le_bytes().repeat(1 << 14);
    for (idx, tensor) in tensors.iter().enumerate() {
        let piece = if tensor.kind == F32 { &ones } else { &random };
        // Each matrix begins at another block of the piece.
        let mut at = if tensor.kind == F32 { 0 } else { idx * 7919 % (piece.len() / 18) * 18 };
        let mut left = tensor.bytes() as usize;
        while left > 0 {
            let end = piece.len().min(at + left);
            let Some(some) = piece.get(at..end) else { break };
            out.write_all(some)?;
            left -= some.len();
            at = 0;
        }
        let padding = tensor.bytes().next_multiple_of(ALIGNMENT) - tensor.bytes();
        out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
    }
    out.into_inner()?.sync_all()
}

/// A megabyte of blocks: longer than what caches and compilers could see a pattern in.
fn random_blocks() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..58_254).flat_map(|_| SCALE.into_iter().chain(next()).chain(next())).collect()
}

/// Metadata as GGUF has it.
#[derive(Default)]
struct Pairs {
    count: u64,
    bytes: Vec<u8>,
}

impl Pairs {
    fn put(&mut self, key: &str, kind: u32, value: &[u8]) {
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
        self.count += 1;
    }

    fn number(&mut self, key: &str, value: u32) {
        self.put(key, 4, &value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.put(key, 6, &value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        let mut framed = Vec::new();
        text(&mut framed, value);
        self.put(key, 8, &framed);
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: Shape, weights: u64, megabytes: u64) {
        let tensors = shape.tensors();
        let matrices = tensors.iter().filter(|tensor| tensor.kind == Q4_0);
        let count: u64 = matrices.map(|tensor| tensor.dims.iter().product::<u64>()).sum();
        assert_eq!(count / 1_000_000, weights, "{}", shape.name);
        let bytes: u64 = tensors.iter().map(Tensor::bytes).sum();
        assert_eq!(bytes / 1_000_000, megabytes, "{}", shape.name);
    }

    #[test]
    fn shapes_have_the_sizes_that_their_names_say() {
        check(LARGE, 1235, 695);
        check(SMALL, 93, 52);
    }

    #[test]
    fn a_file_is_as_long_as_its_header_says_and_is_written_once() {
        let tiny = Shape { hidden: 64, inner: 96, layers: 1, heads: 1, kv_heads: 1, vocab: 40, ..SMALL };
        let path = std::env::temp_dir().join(format!("firstlight-random-{}.gguf", std::process::id()));
        tiny.ensure(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        let tensors = tiny.tensors();
        let data: u64 = tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(ALIGNMENT)).sum();
        assert_eq!(first.len() as u64, tiny.header(&tensors).len() as u64 + data);
        std::fs::write(&path, vec![0; first.len()]).unwrap();
        tiny.ensure(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; first.len()]);
        std::fs::write(&path, [0]).unwrap();
        tiny.ensure(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        std::fs::remove_file(&path).unwrap();
    }
}
