//! The KV cache as kernels see it: how keys and values are stored, the snippets that read and write them, and their twin.
//!
//! A *row* is a head of a block: `block * num_kv_heads + kv head`. A *cell* is 8 numbers of a head that lie together: vec4s c
//! and c + head_dim/8. Invariant: what is stored of a position depends on its own key and value alone.

use half::f16;

use crate::weights::Home;
use crate::{BindingKind, TexelFormat};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// IEEE single.
    #[default]
    F32,
    /// IEEE half.
    F16,
    /// x = scale * q, 8 bits, a scale for the key and one for the value of a position of a head.
    Q8,
}

impl KvFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }

    /// What it adds to a kernel's name behind the cache's home.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::F16 => "_f16",
            Self::Q8 => "_q8",
        }
    }

    /// A texel of the cache.
    pub fn texel(self) -> TexelFormat {
        match self {
            Self::F32 | Self::F16 => TexelFormat::Rgba32,
            Self::Q8 => TexelFormat::Rg32,
        }
    }

    /// Texels of a cell.
    fn cell_texels(self) -> u32 {
        if self == Self::F32 { 2 } else { 1 }
    }

    /// Bytes of the key of one position of one head of `head_dim` dimensions, a multiple of 8.
    pub fn key_bytes(self, head_dim: u32) -> u64 {
        let scales = if self == Self::Q8 { u64::from(self.texel().bytes()) } else { 0 };
        self.value_bytes(head_dim) + scales
    }

    /// Bytes of the value of one position of one head of `head_dim` dimensions, a multiple of 8.
    pub fn value_bytes(self, head_dim: u32) -> u64 {
        u64::from(head_dim / 8) * u64::from(self.cell_texels() * self.texel().bytes())
    }

    /// How the cache is bound where it is read.
    pub(crate) fn read_binding(self, home: Home) -> BindingKind {
        match home {
            Home::Buffer => BindingKind::Read,
            Home::Texture => BindingKind::ReadTexture(self.texel()),
        }
    }

    /// How it is bound where it is written.
    pub(crate) fn write_binding(self, home: Home) -> BindingKind {
        match home {
            Home::Buffer => BindingKind::ReadWrite,
            Home::Texture => BindingKind::WriteTexture(self.texel()),
        }
    }

    /// The snippets that read it; they take the constants `HEAD_CELLS` and `BLOCK_SIZE`.
    pub(crate) fn read_snippets(self, home: Home) -> [&'static str; 4] {
        let bound = match (home, self.texel()) {
            (Home::Buffer, _) => wgsl!("common/kv_read_buffer.wgsl"),
            (Home::Texture, TexelFormat::Rg32) => wgsl!("common/kv_read_texture_q8.wgsl"),
            (Home::Texture, _) => wgsl!("common/kv_read_texture.wgsl"),
        };
        let cells = match self {
            Self::F32 => wgsl!("common/kv_read_f32.wgsl"),
            Self::F16 => wgsl!("common/kv_read_f16.wgsl"),
            Self::Q8 => wgsl!("common/kv_read_q8.wgsl"),
        };
        [wgsl!("common/kv_cell.wgsl"), self.places_snippet(), bound, cells]
    }

    /// The snippets that write it; they take the same constants.
    pub(crate) fn write_snippets(self, home: Home) -> [&'static str; 4] {
        let bound = match (home, self.texel()) {
            (Home::Buffer, _) => wgsl!("common/kv_write_buffer.wgsl"),
            (Home::Texture, TexelFormat::Rg32) => wgsl!("common/kv_write_texture_q8.wgsl"),
            (Home::Texture, _) => wgsl!("common/kv_write_texture.wgsl"),
        };
        let cells = match self {
            Self::F32 => wgsl!("common/kv_write_f32.wgsl"),
            Self::F16 => wgsl!("common/kv_write_f16.wgsl"),
            Self::Q8 => wgsl!("common/kv_write_q8.wgsl"),
        };
        [wgsl!("common/kv_cell.wgsl"), self.places_snippet(), bound, cells]
    }

    fn places_snippet(self) -> &'static str {
        match self {
            Self::F32 => wgsl!("common/kv_f32.wgsl"),
            Self::F16 => wgsl!("common/kv_f16.wgsl"),
            Self::Q8 => wgsl!("common/kv_q8.wgsl"),
        }
    }
}

/// A word of a cache, and how exactly a kernel can be held to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoredWord {
    /// A number.
    Number(f32),
    /// Two halves, the first in the lower bits.
    Halves(u32),
    /// Four signed bytes, the first in the lowest bits.
    Bytes(u32),
}

impl StoredWord {
    /// As it is stored.
    pub fn bits(self) -> u32 {
        match self {
            Self::Number(number) => number.to_bits(),
            Self::Halves(word) | Self::Bytes(word) => word,
        }
    }

    /// Whether `bits` are what a kernel may store in its place, whose numbers another order of rounding has moved: a half or a
    /// byte beside the right one, or a number about as large. No number is about as large as what is none.
    pub fn allows(self, bits: u32) -> bool {
        match self {
            Self::Number(number) => (f32::from_bits(bits) - number).abs() <= 1e-5 + 1e-5 * number.abs(),
            Self::Halves(word) => [0, 16].into_iter().all(|shift| {
                let [got, right] = [bits, word].map(|word| f16::from_bits((word >> shift) as u16).to_f32());
                (got - right).abs() <= 1e-6 + right.abs() / 1024.0
            }),
            Self::Bytes(word) => bits
                .to_le_bytes()
                .iter()
                .zip(word.to_le_bytes())
                .all(|(&a, b)| (a as i8).abs_diff(b as i8) <= 1),
        }
    }
}

/// Words and where they go.
pub type Placed = Vec<(usize, StoredWord)>;

/// A cache of one layer, on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// How its numbers are stored.
    pub format: KvFormat,
    /// Dimensions of a head, a multiple of 8.
    pub head_dim: u32,
    /// Slots of a block.
    pub block_size: u32,
}

impl CacheShape {
    /// Words of all keys in `rows` heads of blocks.
    pub fn key_words(self, rows: usize) -> usize {
        rows * self.block_size as usize * self.format.key_bytes(self.head_dim) as usize / 4
    }

    /// Words of all values in `rows` heads of blocks.
    pub fn value_words(self, rows: usize) -> usize {
        rows * self.block_size as usize * self.format.value_bytes(self.head_dim) as usize / 4
    }

    /// Words of a texel.
    fn texel_words(self) -> usize {
        self.format.texel().bytes() as usize / 4
    }

    /// Texels of a key, scales included, and of a value.
    fn texels(self) -> (usize, usize) {
        let texel = u64::from(self.format.texel().bytes());
        let [key, value] = [self.format.key_bytes(self.head_dim), self.format.value_bytes(self.head_dim)];
        ((key / texel) as usize, (value / texel) as usize)
    }

    /// Where texel t of a key begins, in words.
    fn key_at(self, row: usize, slot: usize, t: usize) -> usize {
        ((row * self.texels().0 + t) * self.block_size as usize + slot) * self.texel_words()
    }

    /// Where texel t of a value begins, in words.
    fn value_at(self, row: usize, slot: usize, t: usize) -> usize {
        ((row * self.block_size as usize + slot) * self.texels().1 + t) * self.texel_words()
    }

    /// The words that hold this key and this value, of `head_dim` numbers each.
    pub fn put(self, row: usize, slot: usize, key: &[f32], value: &[f32]) -> (Placed, Placed) {
        let (key_texels, value_texels) = self.texels();
        let spread = |texels: usize, numbers: &[f32], at: &dyn Fn(usize) -> usize| -> Placed {
            let words = self.words(numbers);
            let placed = words.chunks(self.texel_words()).take(texels).enumerate();
            placed.flat_map(|(t, words)| words.iter().zip(at(t)..).map(|(&word, at)| (at, word))).collect()
        };
        let mut keys = spread(value_texels, key, &|t| self.key_at(row, slot, t));
        if self.format == KvFormat::Q8 {
            let at = self.key_at(row, slot, key_texels - 1);
            keys.extend([(at, StoredWord::Number(scale(key))), (at + 1, StoredWord::Number(scale(value)))]);
        }
        (keys, spread(value_texels, value, &|t| self.value_at(row, slot, t)))
    }

    /// The words of a head, texel by texel.
    fn words(self, numbers: &[f32]) -> Vec<StoredWord> {
        let half = numbers.len() / 2;
        let cells = (0..half / 4).map(|c| [&numbers[c * 4..][..4], &numbers[half + c * 4..][..4]]);
        match self.format {
            KvFormat::F32 => numbers.iter().map(|&number| StoredWord::Number(number)).collect(),
            KvFormat::F16 => {
                let bits = |x: f32| u32::from(f16::from_f32(x.clamp(-65504.0, 65504.0)).to_bits());
                let word = |pair: &[f32]| StoredWord::Halves(bits(pair[0]) | bits(pair[1]) << 16);
                cells.flatten().flat_map(|four| [word(&four[..2]), word(&four[2..])]).collect()
            }
            KvFormat::Q8 => {
                let top = top(numbers);
                let inverse = if top > 1e-30 { 127.0 / top } else { 0.0 };
                let byte = |x: &f32| (x * inverse).round_ties_even() as i8 as u8;
                let word = |four: &[f32]| four.iter().rev().fold(0, |word, x| word << 8 | u32::from(byte(x)));
                cells.flatten().map(|four| StoredWord::Bytes(word(four))).collect()
            }
        }
    }

    /// The numbers that these words stand for, a head's: what attention computes with.
    pub fn rounded(self, numbers: &[f32]) -> Vec<f32> {
        let half = numbers.len() / 2;
        let mut out = numbers.to_vec();
        for (idx, word) in self.words(numbers).into_iter().enumerate() {
            match word {
                StoredWord::Number(_) => {}
                StoredWord::Halves(word) => {
                    // 4 words a cell, 2 of each half.
                    let first = idx / 4 * 4 + idx % 2 * 2 + if idx % 4 < 2 { 0 } else { half };
                    for (i, shift) in [0, 16].into_iter().enumerate() {
                        out[first + i] = f16::from_bits((word >> shift) as u16).to_f32();
                    }
                }
                StoredWord::Bytes(word) => {
                    let first = idx / 2 * 4 + idx % 2 * half;
                    for (i, byte) in word.to_le_bytes().into_iter().enumerate() {
                        out[first + i] = f32::from(byte as i8) * scale(numbers);
                    }
                }
            }
        }
        out
    }
}

fn top(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |top, x| x.abs().max(top))
}

fn scale(numbers: &[f32]) -> f32 {
    top(numbers) / 127.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_cache_has_one_place() {
        for format in KvFormat::ALL {
            for head_dim in [8, 24, 64] {
                let shape = CacheShape { format, head_dim, block_size: 8 };
                let (mut keys, mut values) = (vec![0; shape.key_words(6)], vec![0; shape.value_words(6)]);
                let head: Vec<f32> = (0..head_dim).map(|d| d as f32 - 3.0).collect();
                for (row, slot) in (0..6).flat_map(|row| (0..8).map(move |slot| (row, slot))) {
                    let (key, value) = shape.put(row, slot, &head, &head);
                    key.iter().for_each(|(at, _)| keys[*at] += 1);
                    value.iter().for_each(|(at, _)| values[*at] += 1);
                }
                assert!(keys.iter().chain(&values).all(|&count| count == 1), "{shape:?}");
            }
        }
    }

    #[test]
    fn what_is_stored_is_near_and_large_numbers_stay_finite() {
        let head: Vec<f32> = (0..64).map(|d| (d as f32 * 0.7).sin()).collect();
        for (format, error) in
            [(KvFormat::F32, 0.0), (KvFormat::F16, 1.0 / 2048.0), (KvFormat::Q8, 0.5 / 127.0)]
        {
            let shape = CacheShape { format, head_dim: 64, block_size: 8 };
            let rounded = shape.rounded(&head);
            assert!(head.iter().zip(&rounded).all(|(a, b)| (a - b).abs() <= error * 1.001), "{format:?}");
            let large = shape.rounded(&[1e6; 64]);
            assert!(large.iter().all(|x| x.is_finite() && *x >= 65504.0), "{format:?}: {large:?}");
        }
    }
}
