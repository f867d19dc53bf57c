//! Writes GGUF files, sound ones and, through public fields, broken ones; and states what each tensor type means.
//!
//! Nothing here comes from the engine but its nouns: [`quantise`] and [`element`] are an independent statement of the
//! formats that the engine's dequantisation and the weight kernels are held against.

use firstlight_engine::model::GgufValue;
use firstlight_shaders::WeightFormat;
use half::{bf16, f16};

/// One tensor as it goes into the file, checked by nobody.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    /// The name's bytes, UTF-8 or not.
    pub name: Vec<u8>,
    /// Dimensions in the file's order: fastest first.
    pub dims: Vec<u64>,
    /// ggml's number of the type.
    pub type_id: u32,
    /// Offset within the data; `None` places it behind the previous one.
    pub offset: Option<u64>,
    /// The stored bytes.
    pub data: Vec<u8>,
}

/// A GGUF file in the making.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    /// 3 unless a test wants otherwise.
    pub version: u32,
    /// The boundary that data starts on; written nowhere unless a pair says it.
    pub alignment: usize,
    /// Key, ggml's number of the value type, and the value's bytes.
    pub pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    /// In the file's order.
    pub tensors: Vec<TensorEntry>,
    /// The number of pairs to claim; `None` for the truth.
    pub claimed_pairs: Option<u64>,
    /// The number of tensors to claim; `None` for the truth.
    pub claimed_tensors: Option<u64>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
            claimed_pairs: None,
            claimed_tensors: None,
        }
    }
}

impl GgufWriter {
    /// Adds a pair; integers as 32 bits, floats as f32.
    pub fn pair(&mut self, key: &str, value: &GgufValue) -> &mut Self {
        let (kind, bytes) = encode(value);
        self.pairs.push((key.as_bytes().to_vec(), kind, bytes));
        self
    }

    /// Puts another value in the place of a pair that is there, or adds it.
    pub fn set(&mut self, key: &str, value: &GgufValue) -> &mut Self {
        self.pairs.retain(|(known, _, _)| known != key.as_bytes());
        self.pair(key, value)
    }

    /// Adds a tensor of `shape` (outermost first), quantised from `values`.
    pub fn tensor(&mut self, name: &str, dtype: WeightFormat, shape: &[u64], values: &[f32]) -> &mut Self {
        self.tensors.push(TensorEntry {
            name: name.as_bytes().to_vec(),
            dims: shape.iter().rev().copied().collect(),
            type_id: type_id(dtype),
            offset: None,
            data: quantise(dtype, values),
        });
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.claimed_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.claimed_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.pairs {
            string(&mut out, key);
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn array(kind: u32, items: impl ExactSizeIterator<Item = Vec<u8>>) -> (u32, Vec<u8>) {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((items.len() as u64).to_le_bytes());
    items.for_each(|item| out.extend(item));
    (9, out)
}

fn encode(value: &GgufValue) -> (u32, Vec<u8>) {
    let framed = |text: &String| {
        let mut out = Vec::new();
        string(&mut out, text.as_bytes());
        out
    };
    match value {
        GgufValue::Uint(value) => (4, (*value as u32).to_le_bytes().to_vec()),
        GgufValue::Int(value) => (5, (*value as i32).to_le_bytes().to_vec()),
        GgufValue::Float(value) => (6, (*value as f32).to_le_bytes().to_vec()),
        GgufValue::Bool(value) => (7, vec![u8::from(*value)]),
        GgufValue::Str(text) => (8, framed(text)),
        GgufValue::Uints(values) => array(4, values.iter().map(|v| (*v as u32).to_le_bytes().to_vec())),
        GgufValue::Ints(values) => array(5, values.iter().map(|v| (*v as i32).to_le_bytes().to_vec())),
        GgufValue::Floats(values) => array(6, values.iter().map(|v| (*v as f32).to_le_bytes().to_vec())),
        GgufValue::Bools(values) => array(7, values.iter().map(|v| vec![u8::from(*v)])),
        GgufValue::Strings(values) => array(8, values.iter().map(framed)),
    }
}

/// ggml's number of a type.
pub fn type_id(dtype: WeightFormat) -> u32 {
    match dtype {
        WeightFormat::F32 => 0,
        WeightFormat::F16 => 1,
        WeightFormat::Q4_0 => 2,
        WeightFormat::Q4_1 => 3,
        WeightFormat::Q8_0 => 8,
        WeightFormat::Bf16 => 30,
    }
}

/// Stores `values` as `dtype`; for block types their number is a multiple of 32. Rounds to nearest, which need not be
/// the best choice, only a sound one.
pub fn quantise(dtype: WeightFormat, values: &[f32]) -> Vec<u8> {
    assert!(values.len().is_multiple_of(dtype.block_len() as usize), "whole blocks only");
    let blocks = values.chunks_exact(dtype.block_len() as usize);
    match dtype {
        WeightFormat::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        WeightFormat::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        WeightFormat::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        WeightFormat::Q8_0 => blocks.flat_map(quantise_q8_0).collect(),
        WeightFormat::Q4_0 => blocks.flat_map(quantise_q4_0).collect(),
        WeightFormat::Q4_1 => blocks.flat_map(quantise_q4_1).collect(),
    }
}

/// A scale as it will be read, and how often it goes into a value.
fn scale(wanted: f32) -> (f16, impl Fn(f32) -> f32) {
    let stored = f16::from_f32(wanted);
    let scale = stored.to_f32();
    (stored, move |value| if scale == 0.0 { 0.0 } else { (value / scale).round() })
}

fn quantise_q8_0(block: &[f32]) -> Vec<u8> {
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let (stored, steps) = scale(largest / 127.0);
    let mut out = stored.to_le_bytes().to_vec();
    out.extend(block.iter().map(|value| steps(*value).clamp(-128.0, 127.0) as i8 as u8));
    out
}

fn quantise_q4_0(block: &[f32]) -> Vec<u8> {
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let (stored, steps) = scale(largest / 7.0);
    let mut out = stored.to_le_bytes().to_vec();
    out.extend(pack(block, |value| steps(value) + 8.0));
    out
}

fn quantise_q4_1(block: &[f32]) -> Vec<u8> {
    let low = block.iter().copied().fold(f32::INFINITY, f32::min);
    let high = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let minimum = f16::from_f32(low);
    let (stored, steps) = scale((high - low) / 15.0);
    let mut out = stored.to_le_bytes().to_vec();
    out.extend(minimum.to_le_bytes());
    out.extend(pack(block, |value| steps(value - minimum.to_f32())));
    out
}

/// Element i into the low half of byte i, element i + 16 into its high half.
fn pack(block: &[f32], code: impl Fn(f32) -> f32) -> Vec<u8> {
    let code = |value: f32| code(value).clamp(0.0, 15.0) as u8;
    (0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4).collect()
}

/// Element `idx` of a stored tensor: the formats' definition, one element at a time.
pub fn element(dtype: WeightFormat, bytes: &[u8], idx: usize) -> f32 {
    let float16 = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    let (block, within) = (idx / 32, idx % 32);
    let nibble = |start: usize| {
        let byte = bytes[start + within % 16];
        f32::from(if within < 16 { byte & 0x0f } else { byte >> 4 })
    };
    match dtype {
        WeightFormat::F32 => {
            let at = idx * 4;
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        }
        WeightFormat::F16 => float16(idx * 2),
        WeightFormat::Bf16 => {
            f32::from_bits(u32::from(u16::from_le_bytes([bytes[idx * 2], bytes[idx * 2 + 1]])) << 16)
        }
        WeightFormat::Q8_0 => float16(block * 34) * f32::from(bytes[block * 34 + 2 + within] as i8),
        WeightFormat::Q4_0 => float16(block * 18) * (nibble(block * 18 + 2) - 8.0),
        WeightFormat::Q4_1 => float16(block * 20) * nibble(block * 20 + 4) + float16(block * 20 + 2),
    }
}

/// All elements of a stored tensor.
pub fn reference_dequantise(dtype: WeightFormat, bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.len() * 32 / dtype.block_bytes();
    (0..elements).map(|idx| element(dtype, bytes, idx)).collect()
}
