//! Parses the bytes of a GGUF header, versions 2 and 3, little-endian.
//!
//! It never reads beyond what it is given and never reserves memory for a number that a file merely claims: every
//! length is compared with the bytes at hand first. Invariant: what it allocates is bounded by the limits below.

use std::collections::{BTreeMap, HashSet};

use super::gguf::GgufValue;
use firstlight_shaders::WeightFormat;

use super::source::TensorInfo;
use crate::order::sort_by_number;

/// Headers of real models (a vocabulary of 256 thousand and its merges) are below 16 MiB.
pub(super) const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Real files have some dozens of pairs.
const MAX_PAIRS: u64 = 65_536;
/// The largest models have some thousands of tensors.
const MAX_TENSORS: u64 = 65_536;
/// All arrays together: 256 thousand tokens with scores, types and half a million merges are 1.3 million elements.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 22;
/// The format's own limit on a key.
const MAX_KEY_BYTES: u64 = 65_535;
/// ggml's own limit is 64.
const MAX_TENSOR_NAME_BYTES: u64 = 256;
/// ggml's own limit.
const MAX_DIMS: u32 = 4;
/// Alignment where the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// No writer aligns to more than a page.
const MAX_ALIGNMENT: u64 = 1 << 16;

type Pairs = BTreeMap<String, GgufValue>;

/// Why parsing stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The bytes at hand end before `what`, which goes up to byte `end`.
    Short {
        /// Bytes of the file that are needed.
        end: u64,
        /// What was being read.
        what: String,
    },
    /// The format is broken.
    Malformed(String),
    /// The format is sound, and this engine does not read it.
    Unsupported(String),
}

fn broken<T>(reason: String) -> Result<T, Stop> {
    Err(Stop::Malformed(reason))
}

/// Parses the header at the start of `bytes`, the beginning of a file of `file_bytes`.
pub(super) fn parse(bytes: &[u8], file_bytes: u64) -> Result<(Pairs, Vec<TensorInfo>), Stop> {
    let mut cursor = Cursor { bytes, at: 0, array_elements: 0 };
    let magic = cursor.take(4, "the magic")?;
    if magic != b"GGUF" {
        return broken(format!("it begins with {magic:?} and not with GGUF"));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        // A byte-swapped 3 is what a big-endian writer leaves.
        let kind = if version.swap_bytes() <= 3 { "a big-endian file" } else { "this version" };
        return Err(Stop::Unsupported(format!(
            "GGUF version {version}: {kind} is not read, versions 2 and 3 are"
        )));
    }
    let num_tensors = cursor.u64("the number of tensors")?;
    let num_pairs = cursor.u64("the number of metadata pairs")?;
    if num_pairs > MAX_PAIRS {
        return broken(format!("it claims {num_pairs} metadata pairs; at most {MAX_PAIRS} are read"));
    }
    if num_tensors > MAX_TENSORS {
        return broken(format!("it claims {num_tensors} tensors; at most {MAX_TENSORS} are read"));
    }
    let mut pairs = Pairs::new();
    for _ in 0..num_pairs {
        let key = cursor.string(MAX_KEY_BYTES, "a metadata key")?;
        let value = cursor.value(&key)?;
        if pairs.insert(key.clone(), value).is_some() {
            return broken(format!("the metadata key {key} occurs twice"));
        }
    }
    let alignment = alignment(&pairs)?;
    let mut tensors = Vec::new();
    for _ in 0..num_tensors {
        tensors.push(cursor.tensor(alignment)?);
    }
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    place(&mut tensors, data_start, file_bytes)?;
    Ok((pairs, tensors))
}

fn alignment(pairs: &Pairs) -> Result<u64, Stop> {
    match pairs.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(GgufValue::Uint(value)) if value.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(value) => {
            Ok(*value)
        }
        Some(value) => {
            let found = value.as_u32().map_or(value.kind().to_owned(), |number| number.to_string());
            broken(format!(
                "general.alignment is {found}; it must be a power of two from 8 to {MAX_ALIGNMENT}"
            ))
        }
    }
}

/// Turns offsets within the data into offsets within the file, and checks names and places.
fn place(tensors: &mut [TensorInfo], data_start: u64, file_bytes: u64) -> Result<(), Stop> {
    let mut names = HashSet::new();
    for tensor in tensors.iter_mut() {
        let name = &tensor.name;
        if !names.insert(name.clone()) {
            return broken(format!("the tensor {name} occurs twice"));
        }
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.num_bytes));
        let (Some(start), Some(end)) = (start, end) else {
            return broken(format!("the tensor {name} has the absurd offset {}", tensor.offset));
        };
        if end > file_bytes {
            let place = format!("ends at byte {end}, and the file has {file_bytes}");
            return broken(format!("the tensor {name} {place}; fetch it again"));
        }
        tensor.offset = start;
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    sort_by_number(&mut by_offset, |tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].num_bytes > pair[1].offset {
            return broken(format!("the tensors {} and {} overlap", pair[0].name, pair[1].name));
        }
    }
    Ok(())
}

/// ggml's tensor types: those that are read, or the name of one that is not.
fn tensor_type(id: u32) -> Result<WeightFormat, &'static str> {
    Err(match id {
        0 => return Ok(WeightFormat::F32),
        1 => return Ok(WeightFormat::F16),
        2 => return Ok(WeightFormat::Q4_0),
        3 => return Ok(WeightFormat::Q4_1),
        8 => return Ok(WeightFormat::Q8_0),
        30 => return Ok(WeightFormat::Bf16),
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => "one without a name here",
    })
}

/// A position in the bytes at hand.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    array_elements: u64,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], Stop> {
        let short = || Stop::Short { end: (self.at as u64).saturating_add(len), what: what.to_owned() };
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let slice = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(short)?;
        self.at += slice.len();
        Ok(slice)
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Stop> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, what)?);
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.number(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.number(what)?))
    }

    fn string(&mut self, max_bytes: u64, what: &str) -> Result<String, Stop> {
        let len = self.u64(what)?;
        if len > max_bytes {
            return broken(format!("{what} claims {len} bytes; at most {max_bytes} are read"));
        }
        match std::str::from_utf8(self.take(len, what)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => broken(format!("{what} at byte {} is not UTF-8: {error}", self.at as u64 - len)),
        }
    }

    fn value(&mut self, key: &str) -> Result<GgufValue, Stop> {
        match self.u32(key)? {
            9 => self.array(key),
            8 => Ok(GgufValue::Str(self.string(MAX_HEADER_BYTES, key)?)),
            kind => {
                let width = scalar_bytes(kind).ok_or_else(|| unknown_kind(key, kind))?;
                let bytes = self.take(width, key)?;
                match kind {
                    7 if bytes[0] <= 1 => Ok(GgufValue::Bool(bytes[0] == 1)),
                    7 => broken(format!("{key} is a boolean of value {}", bytes[0])),
                    6 | 12 => Ok(GgufValue::Float(float(bytes))),
                    1 | 3 | 5 | 11 => Ok(GgufValue::Int(signed(bytes))),
                    _ => Ok(GgufValue::Uint(unsigned(bytes))),
                }
            }
        }
    }

    fn array(&mut self, key: &str) -> Result<GgufValue, Stop> {
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        if kind == 9 {
            return Err(Stop::Unsupported(format!("{key} is an array of arrays; only flat ones are")));
        }
        self.array_elements = self.array_elements.saturating_add(count);
        if self.array_elements > MAX_ARRAY_ELEMENTS {
            let claim = format!("{key} claims {count} elements");
            return broken(format!("{claim}; all arrays together may have {MAX_ARRAY_ELEMENTS}"));
        }
        if kind == 8 {
            let mut strings = Vec::new();
            for _ in 0..count {
                strings.push(self.string(MAX_HEADER_BYTES, key)?);
            }
            return Ok(GgufValue::Strings(strings));
        }
        let width = scalar_bytes(kind).ok_or_else(|| unknown_kind(key, kind))?;
        let items = self.take(count * width, key)?.chunks_exact(width as usize);
        Ok(match kind {
            7 => {
                let flags: Option<Vec<bool>> =
                    items.map(|item| (item[0] <= 1).then_some(item[0] == 1)).collect();
                let Some(flags) = flags else {
                    return broken(format!("{key} has a boolean that is not 0 or 1"));
                };
                GgufValue::Bools(flags)
            }
            6 | 12 => GgufValue::Floats(items.map(float).collect()),
            1 | 3 | 5 | 11 => GgufValue::Ints(items.map(signed).collect()),
            _ => GgufValue::Uints(items.map(unsigned).collect()),
        })
    }

    /// One tensor; its offset still counts from the start of the data.
    fn tensor(&mut self, alignment: u64) -> Result<TensorInfo, Stop> {
        let name = self.string(MAX_TENSOR_NAME_BYTES, "a tensor's name")?;
        let num_dims = self.u32(&name)?;
        if num_dims == 0 || num_dims > MAX_DIMS {
            return broken(format!(
                "the tensor {name} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible"
            ));
        }
        let mut shape = Vec::new();
        for _ in 0..num_dims {
            shape.push(self.u64(&name)?);
        }
        let type_id = self.u32(&name)?;
        let offset = self.u64(&name)?;
        let dtype = tensor_type(type_id).map_err(|type_name| {
            let known = "F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are";
            Stop::Unsupported(format!("the tensor {name} is of ggml type {type_id} ({type_name}); {known}"))
        })?;
        // The file lists the fastest dimension first; ours is the other way round. Blocks lie along the fastest.
        let row = shape[0];
        shape.reverse();
        let Some(num_bytes) = dtype.tensor_bytes(&shape) else {
            return broken(format!(
                "the tensor {name} of shape {shape:?} has an impossible number of elements"
            ));
        };
        if !row.is_multiple_of(dtype.block_len()) {
            let rule = format!("{} stores blocks of {}", dtype.title(), dtype.block_len());
            return broken(format!("the tensor {name} has rows of {row} elements, and {rule}"));
        }
        if !offset.is_multiple_of(alignment) {
            return broken(format!(
                "the tensor {name} starts at {offset}, which is not a multiple of {alignment}"
            ));
        }
        Ok(TensorInfo { name, dtype, shape, source_idx: 0, offset, num_bytes })
    }
}

fn unknown_kind(key: &str, kind: u32) -> Stop {
    Stop::Malformed(format!("{key} has the value type {kind}, and the format knows 0 to 12"))
}

/// Bytes of a scalar of this value type; `None` for strings, arrays and types that do not exist.
fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn signed(bytes: &[u8]) -> i64 {
    // Moving the value to the top and back extends its sign.
    let unused = 64 - 8 * bytes.len() as u32;
    (unsigned(bytes) as i64) << unused >> unused
}

fn float(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => f64::from(f32::from_bits(unsigned(bytes) as u32)),
        _ => f64::from_bits(unsigned(bytes)),
    }
}
