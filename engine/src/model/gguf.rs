//! What a GGUF file says about itself: its metadata and its tensors, both checked.
//!
//! It never reads a tensor's data and knows no architecture. Invariant: a [`GgufFile`] exists only when every tensor
//! in it lies inside the file, apart from every other one.

use std::collections::BTreeMap;

use super::gguf_parser::{self, MAX_HEADER_BYTES, Stop};
use super::source::{TensorInfo, WeightSource, malformed, read_range, unsupported};
use crate::error::LoadError;

/// The first read. Small models' headers fit, and a remote host answers it in one go.
const FIRST_READ_BYTES: u64 = 1 << 20;

/// A metadata value. Integers of every width are one variant each for signed and unsigned, floats are `f64`.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// u8, u16, u32, u64.
    Uint(u64),
    /// i8, i16, i32, i64.
    Int(i64),
    /// f32, f64.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8.
    Str(String),
    /// An array of unsigned integers.
    Uints(Vec<u64>),
    /// An array of signed integers.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of strings.
    Strings(Vec<String>),
}

impl GgufValue {
    /// What it is, for an error.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Uint(_) => "an unsigned integer",
            Self::Int(_) => "a signed integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Str(_) => "a string",
            Self::Uints(_) => "an array of unsigned integers",
            Self::Ints(_) => "an array of signed integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of booleans",
            Self::Strings(_) => "an array of strings",
        }
    }

    /// An integer of either sign that fits into `u32`.
    pub fn as_u32(&self) -> Option<u32> {
        match self {
            Self::Uint(value) => u32::try_from(*value).ok(),
            Self::Int(value) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A float or an integer, as `f32`.
    pub fn as_f32(&self) -> Option<f32> {
        match self {
            Self::Float(value) => Some(*value as f32),
            Self::Uint(value) => Some(*value as f32),
            Self::Int(value) => Some(*value as f32),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(value) => Some(value),
            _ => None,
        }
    }
}

/// The parsed header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufFile {
    /// What the source calls itself, for errors.
    pub name: String,
    /// All key-value pairs.
    pub metadata: BTreeMap<String, GgufValue>,
    /// All tensors in the file's order; shapes row-major (outermost first), `source_idx` 0.
    pub tensors: Vec<TensorInfo>,
}

impl GgufFile {
    /// Reads and checks the header of `source` in growing pieces, never more than 64 MiB of it.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] where the file breaks the format, [`LoadError::Unsupported`] for a version or a tensor
    /// type that this engine does not read, [`LoadError::Read`] from the host.
    pub async fn open<S: WeightSource>(source: &S) -> Result<Self, LoadError> {
        let name = source.name();
        let file_bytes = source.len();
        let readable = file_bytes.min(MAX_HEADER_BYTES);
        let mut wanted = readable.min(FIRST_READ_BYTES);
        let mut header = Vec::new();
        loop {
            // Only what is missing is read; parsing starts over, which at worst doubles its cost as the pieces double.
            let have = header.len() as u64;
            header.extend(read_range(source, have, (wanted - have) as usize).await?);
            match gguf_parser::parse(&header, file_bytes) {
                Ok((metadata, tensors)) => return Ok(Self { name, metadata, tensors }),
                Err(Stop::Malformed(reason)) => return Err(malformed(&name, reason)),
                Err(Stop::Unsupported(reason)) => return Err(unsupported(&name, reason)),
                Err(Stop::Short { end, what }) if end > file_bytes => {
                    let reason =
                        format!("{what} ends at byte {end}, and the file has {file_bytes}; fetch it again");
                    return Err(malformed(&name, reason));
                }
                Err(Stop::Short { end, what }) if end > readable => {
                    let reason =
                        format!("{what} ends at byte {end}; a header may have {MAX_HEADER_BYTES} bytes");
                    return Err(malformed(&name, reason));
                }
                Err(Stop::Short { end, .. }) => wanted = end.max(wanted * 2).min(readable),
            }
        }
    }

    /// A value, whatever its type.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// A string; `None` where the key is absent.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] where the value has another type; so for all getters below.
    pub fn str(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(key, "a string", GgufValue::as_str)
    }

    /// An integer in u32's range.
    ///
    /// # Errors
    /// As [`GgufFile::str`].
    pub fn u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.typed(key, "an integer from 0 to 4294967295", GgufValue::as_u32)
    }

    /// A number.
    ///
    /// # Errors
    /// As [`GgufFile::str`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.typed(key, "a number", GgufValue::as_f32)
    }

    /// A boolean.
    ///
    /// # Errors
    /// As [`GgufFile::str`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "a boolean", GgufValue::as_bool)
    }

    /// An array of strings.
    ///
    /// # Errors
    /// As [`GgufFile::str`].
    pub fn strings(&self, key: &str) -> Result<Option<Vec<String>>, LoadError> {
        self.typed(key, "an array of strings", |value| match value {
            GgufValue::Strings(values) => Some(values.clone()),
            _ => None,
        })
    }

    /// An array of integers of any width and sign.
    ///
    /// # Errors
    /// As [`GgufFile::str`]; also where an unsigned one is above i64's range.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, LoadError> {
        self.typed(key, "an array of integers", |value| match value {
            GgufValue::Ints(values) => Some(values.clone()),
            GgufValue::Uints(values) => values.iter().map(|&value| i64::try_from(value).ok()).collect(),
            _ => None,
        })
    }

    /// An array of floats.
    ///
    /// # Errors
    /// As [`GgufFile::str`].
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        self.typed(key, "an array of floats", |value| match value {
            GgufValue::Floats(values) => Some(values.iter().map(|&value| value as f32).collect()),
            _ => None,
        })
    }

    fn typed<'a, T: 'a>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let wrong = || malformed(&self.name, format!("{key} should be {wanted} and is {}", value.kind()));
        read(value).map(Some).ok_or_else(wrong)
    }
}
