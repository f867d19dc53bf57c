//! What a safetensors file says about itself: the header of one shard, and the index that lists the shards.
//!
//! It reads the 8-byte length and the header, never the data. The header is parsed here and not by the `safetensors`
//! crate, because that one wants the whole file in one slice, keeps the last of two equal names, and counts in `usize`,
//! which ends at 4 GiB in a browser. Invariant: every tensor lies inside its file, and the tensors fill it without a gap.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use firstlight_shaders::WeightFormat;

use super::source::{TensorInfo, WeightSource, malformed, read_range, unsupported};
use crate::error::LoadError;
use crate::order::sort_by_number;

/// A thousand layers need less than 2 MiB.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// As for the header: the index repeats its names.
const MAX_INDEX_BYTES: usize = 16 << 20;
/// Real checkpoints have 2, and what exceeds this is an attempt at overflow.
const MAX_DIMS: usize = 8;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's entries in its own order, duplicates kept so that they can be refused.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The tensors of one shard, by offset; `source_idx` is put into each.
///
/// # Errors
/// [`LoadError::Malformed`] where the header breaks the format, [`LoadError::Unsupported`] for an element type other
/// than F32, F16 and BF16, [`LoadError::Read`] from the host.
pub async fn open_safetensors<S: WeightSource>(
    source: &S,
    source_idx: usize,
) -> Result<Vec<TensorInfo>, LoadError> {
    let name = source.name();
    let file_bytes = source.len();
    if file_bytes < 8 {
        return Err(malformed(
            &name,
            format!("a safetensors file has at least 8 bytes, this one has {file_bytes}"),
        ));
    }
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&read_range(source, 0, 8).await?);
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > MAX_HEADER_BYTES {
        let reason = format!("its header claims {header_bytes} bytes; at most {MAX_HEADER_BYTES} are read");
        return Err(malformed(&name, reason));
    }
    let data_start = 8 + header_bytes;
    if data_start > file_bytes {
        let reason =
            format!("its header ends at byte {data_start}, and the file has {file_bytes}; fetch it again");
        return Err(malformed(&name, reason));
    }
    let json = read_range(source, 8, header_bytes as usize).await?;
    let header: Header = serde_json::from_slice(&json).map_err(|error| {
        malformed(&name, format!("its header is not the JSON of a safetensors file: {error}"))
    })?;
    let mut tensors = Vec::new();
    for (tensor_name, entry) in header.0 {
        tensors.push(tensor(&name, tensor_name, entry, data_start, source_idx)?);
    }
    check_places(&name, &mut tensors, data_start, file_bytes)?;
    Ok(tensors)
}

fn tensor(
    file: &str,
    name: String,
    entry: Entry,
    data_start: u64,
    source_idx: usize,
) -> Result<TensorInfo, LoadError> {
    let dtype = match entry.dtype.as_str() {
        "F32" => WeightFormat::F32,
        "F16" => WeightFormat::F16,
        "BF16" => WeightFormat::Bf16,
        other => {
            let reason = format!("the tensor {name} is of type {other}; F32, F16 and BF16 are read");
            return Err(unsupported(file, reason));
        }
    };
    let shape = entry.shape;
    let num_bytes = dtype.tensor_bytes(&shape).filter(|_| shape.len() <= MAX_DIMS);
    let Some(num_bytes) = num_bytes else {
        let shown = &shape[..shape.len().min(MAX_DIMS)];
        let reason = format!("the tensor {name} of shape {shown:?} has an impossible number of elements");
        return Err(malformed(file, reason));
    };
    let [start, end] = entry.data_offsets;
    if end.checked_sub(start) != Some(num_bytes) {
        let reason = format!("the tensor {name} of {num_bytes} bytes claims the bytes from {start} to {end}");
        return Err(malformed(file, reason));
    }
    let Some(offset) = start.checked_add(data_start) else {
        return Err(malformed(file, format!("the tensor {name} has the absurd offset {start}")));
    };
    Ok(TensorInfo { name, dtype, shape, source_idx, offset, num_bytes })
}

/// The format has the data filled from its first byte to its last: an overlap or a gap is damage.
fn check_places(
    file: &str,
    tensors: &mut Vec<TensorInfo>,
    data_start: u64,
    file_bytes: u64,
) -> Result<(), LoadError> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name.clone())) {
        return Err(malformed(file, format!("the tensor {} occurs twice", twice.name)));
    }
    sort_by_number(tensors, |tensor| tensor.offset);
    let mut expected = data_start;
    for tensor in tensors {
        if tensor.offset != expected {
            let found = tensor.offset;
            let reason = format!("the tensor {} starts at byte {found} where {expected} is due", tensor.name);
            return Err(malformed(file, reason));
        }
        let end = expected.checked_add(tensor.num_bytes).filter(|end| *end <= file_bytes);
        let Some(end) = end else {
            let place =
                format!("has {} bytes from byte {expected}, and the file has {file_bytes}", tensor.num_bytes);
            return Err(malformed(file, format!("the tensor {} {place}; fetch it again", tensor.name)));
        };
        expected = end;
    }
    if expected != file_bytes {
        return Err(malformed(file, format!("{} bytes follow the last tensor", file_bytes - expected)));
    }
    Ok(())
}

/// The shards that a `model.safetensors.index.json` names, sorted, each once: plain file names beside the index.
///
/// # Errors
/// [`LoadError::Malformed`] where it is not such an index, or names anything but a plain `.safetensors` file.
pub fn shard_names(index_name: &str, index_json: &[u8]) -> Result<Vec<String>, LoadError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    if index_json.len() > MAX_INDEX_BYTES {
        let reason = format!("an index of {} bytes; at most {MAX_INDEX_BYTES} are read", index_json.len());
        return Err(malformed(index_name, reason));
    }
    let index: Index = serde_json::from_slice(index_json)
        .map_err(|error| malformed(index_name, format!("not the JSON of a safetensors index: {error}")))?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort_unstable();
    names.dedup();
    // A host opens these names in the model's own folder, so none may lead out of it.
    if let Some(bad) =
        names.iter().find(|name| name.contains(['/', '\\', ':']) || !name.ends_with(".safetensors"))
    {
        return Err(malformed(
            index_name,
            format!("it names the shard {bad:?}, which is not a plain .safetensors file"),
        ));
    }
    Ok(names)
}
