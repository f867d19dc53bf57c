//! Damaged and hostile files: always an error or a sound model, never a panic, a hang or a huge read.

use std::cell::Cell;

use firstlight_engine::model::open_safetensors;
use firstlight_tests::gguf_writer::TensorEntry;

use super::*;

/// The limit on a header; nothing larger is ever read at open.
const MAX_READ: usize = 64 << 20;

fn tiny() -> GgufWriter {
    let mut writer = TinyModel { vocab_size: 32, num_layers: 1, ..TinyModel::default() }.gguf();
    let tokens = (0..32).map(|token| format!("token {token}")).collect();
    writer.pair("tokenizer.ggml.tokens", &GgufValue::Strings(tokens));
    writer.pair("tokenizer.ggml.scores", &GgufValue::Floats(vec![0.5; 32]));
    writer.pair("tokenizer.ggml.token_type", &GgufValue::Ints(vec![-1; 32]));
    writer
}

/// A safetensors file of these entries: name, type, shape, offsets; then `data_bytes` zeros.
fn safetensors_file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_bytes, 0);
    file
}

fn open_shard(bytes: Vec<u8>) -> Result<Vec<TensorInfo>, LoadError> {
    pollster::block_on(open_safetensors(&memory("model.safetensors", bytes), 0))
}

/// Claims any length, gives zeros behind its head, and remembers the largest read.
struct Endless {
    head: Vec<u8>,
    claimed_bytes: u64,
    largest_read: Cell<usize>,
}

impl WeightSource for &Endless {
    fn name(&self) -> String {
        "endless".to_owned()
    }

    fn len(&self) -> u64 {
        self.claimed_bytes
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        self.largest_read.set(self.largest_read.get().max(len));
        assert!(len <= MAX_READ, "a read of {len} bytes");
        let start = self.head.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let mut bytes: Vec<u8> = self.head[start..].iter().copied().take(len).collect();
        bytes.resize(len, 0);
        Ok(bytes)
    }
}

#[test]
fn every_truncation_of_a_gguf_file_is_an_error() {
    let whole = tiny().bytes();
    assert!(open_gguf(whole.clone()).is_ok());
    let data_start = whole.len() - open_gguf(whole.clone()).unwrap().total_bytes() as usize;
    // All of the header's bytes, then samples of the data: all errors there are "the tensor ends beyond the file".
    for len in (0..data_start + 64).chain((data_start..whole.len()).step_by(997)).chain([whole.len() - 1]) {
        check_malformed(open_gguf(whole[..len].to_vec()), &["the file has"]);
    }
}

#[test]
fn every_truncation_of_a_safetensors_file_is_an_error() {
    let whole = golden("arch/llama3/model.safetensors");
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in (0..header_end + 64).step_by(7).chain((header_end..whole.len()).step_by(997)) {
        check_malformed(open_shard(whole[..len].to_vec()), &["has"]);
    }
    let mut longer = whole;
    longer.push(0);
    check_malformed(open_shard(longer), &["1 bytes follow"]);
}

#[test]
fn flipped_bytes_give_an_error_or_a_sound_model() {
    let mut random = Random(2026);
    let gguf = tiny().bytes();
    let gguf_header = gguf.len() - open_gguf(gguf.clone()).unwrap().total_bytes() as usize;
    let config: Value = serde_json::from_slice(&golden("arch/llama3/config.json")).unwrap();
    let shard = golden("arch/llama3/model.safetensors");
    let shard_header = 8 + u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    let mut outcomes = [0; 2];
    for round in 0..12_000 {
        let is_gguf = round % 3 != 0;
        let (mut bytes, header) =
            if is_gguf { (gguf.clone(), gguf_header) } else { (shard.clone(), shard_header) };
        for _ in 0..=random.below(3) {
            let at = random.below(header as u64) as usize;
            // Random bytes, and those that make lengths huge.
            bytes[at] = [random.bits() as u8, 0xff, 0x7f, 0x00][random.below(4) as usize];
        }
        let opened = if is_gguf { open_gguf(bytes) } else { open_hf(&config, vec![bytes]) };
        outcomes[usize::from(opened.is_ok())] += 1;
    }
    let [errors, sound] = outcomes;
    assert!(
        errors > 2000 && sound > 200,
        "{errors} errors and {sound} sound models: the flips miss their point"
    );
}

#[test]
fn flipped_bytes_of_a_config_json_give_an_error_or_a_configuration() {
    let mut random = Random(2027);
    let whole = golden("arch/llama3/config.json");
    for _ in 0..5000 {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = [random.bits() as u8, b'9', b'{', b'"'][random.below(4) as usize];
        let _ = ModelConfig::from_config_json("config.json", &bytes);
    }
    for len in 0..whole.len() - 2 {
        check_malformed(ModelConfig::from_config_json("config.json", &whole[..len]), &["config.json"]);
    }
    let nested = "[".repeat(200_000);
    check_malformed(ModelConfig::from_config_json("config.json", nested.as_bytes()), &["JSON"]);
    let nested = format!("{{\"model_type\": {}", nested);
    check_malformed(ModelConfig::from_config_json("config.json", nested.as_bytes()), &["JSON"]);
}

#[test]
fn claims_of_a_gguf_file_are_checked_before_they_are_believed() {
    let check = |edit: &dyn Fn(&mut GgufWriter), words: &[&str]| {
        let mut writer = tiny();
        edit(&mut writer);
        check_malformed(open_gguf(writer.bytes()), words);
    };
    check(&|w| w.claimed_pairs = Some(u64::MAX), &["metadata pairs", "18446744073709551615"]);
    check(&|w| w.claimed_tensors = Some(1 << 60), &["tensors", "1152921504606846976"]);
    check(&|w| w.claimed_pairs = Some(60_000), &["metadata key"]);
    let pair = |kind: u32, bytes: Vec<u8>| {
        move |w: &mut GgufWriter| w.pairs.push((b"k".to_vec(), kind, bytes.clone()))
    };
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    check(&pair(8, u64::MAX.to_le_bytes().to_vec()), &["k claims 18446744073709551615 bytes"]);
    check(&pair(8, (50u64 << 20).to_le_bytes().to_vec()), &["k ends at byte", "the file has"]);
    check(&pair(9, array(8, u64::MAX)), &["k claims", "elements"]);
    check(&pair(9, array(8, 4_000_000)), &["k claims", "bytes"]);
    check(&pair(9, array(12, 4_000_000)), &["the file has"]);
    check(&pair(9, array(13, 1)), &["value type 13"]);
    check(&pair(77, vec![0; 8]), &["value type 77"]);
    check(&pair(7, vec![2]), &["boolean"]);
    check(&pair(8, [&4u64.to_le_bytes()[..], &[0xff, 0xfe, 0x80, 0x00]].concat()), &["k at byte", "UTF-8"]);
    check(&|w| w.pairs.push(w.pairs[3].clone()), &["occurs twice"]);
    check(&|w| w.pairs[0].0 = vec![0xc3, 0x28], &["metadata key", "UTF-8"]);
    for alignment in [0u32, 1, 7, 48, 1 << 20] {
        let value = alignment.to_le_bytes().to_vec();
        check(&|w| w.pairs.push((b"general.alignment".to_vec(), 4, value.clone())), &["general.alignment"]);
    }
    let nested: Vec<u8> = (0..10_000).flat_map(|_| array(9, 1)).collect();
    let mut writer = tiny();
    writer.pairs.push((b"k".to_vec(), 9, nested));
    check_unsupported(open_gguf(writer.bytes()), &["array of arrays"]);
}

#[test]
fn tensors_of_a_gguf_file_are_checked_one_by_one() {
    let check = |edit: &dyn Fn(&mut TensorEntry), words: &[&str]| {
        let mut writer = tiny();
        edit(&mut writer.tensors[4]);
        check_malformed(open_gguf(writer.bytes()), words);
    };
    check(&|t| t.dims = vec![1_000_000_000, 1_000_000_000], &["the file has"]);
    check(&|t| t.dims = vec![1 << 32, 1 << 32], &["impossible number of elements"]);
    check(&|t| t.dims = vec![u64::MAX; 4], &["impossible number of elements"]);
    check(&|t| t.dims = vec![64, 0], &["impossible number of elements"]);
    check(&|t| t.dims = vec![], &["0 dimensions"]);
    check(&|t| t.dims = vec![1; 5], &["5 dimensions"]);
    check(&|t| t.offset = Some(0), &["overlap"]);
    check(&|t| t.offset = Some(33), &["not a multiple of 32"]);
    check(&|t| t.offset = Some(u64::MAX - 31), &["absurd offset"]);
    check(&|t| t.offset = Some(1 << 40), &["the file has"]);
    check(&|t| t.name = b"token_embd.weight".to_vec(), &["token_embd.weight occurs twice"]);
    check(&|t| t.name = vec![0xff; 8], &["a tensor's name", "UTF-8"]);
    check(&|t| t.name = vec![b'x'; 70_000], &["a tensor's name", "70000"]);
    check(&|t| (t.type_id, t.dims) = (8, vec![48, 2]), &["rows of 48 elements", "blocks of 32"]);
    for (type_id, name) in [(12, "Q4_K"), (14, "Q6_K"), (20, "IQ4_NL"), (4_000_000_000, "4000000000")] {
        let mut writer = tiny();
        writer.tensors[4].type_id = type_id;
        check_unsupported(open_gguf(writer.bytes()), &[name, "Q4_1 are"]);
    }
    for (version, words) in [(1, "version 1"), (4, "version 4"), (3u32.swap_bytes(), "big-endian")] {
        check_unsupported(open_gguf(GgufWriter { version, ..tiny() }.bytes()), &[words]);
    }
    assert!(open_gguf(GgufWriter { version: 2, ..tiny() }.bytes()).is_ok());
    check_malformed(open_gguf(b"GGML and more".to_vec()), &["GGUF"]);
}

#[test]
fn headers_of_safetensors_files_are_checked() {
    let check = |header: &str, data_bytes: usize, words: &[&str]| {
        check_malformed(open_shard(safetensors_file(header, data_bytes)), words);
    };
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let entry = |offsets: &str| format!("{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":{offsets}}}");
    assert_eq!(open_shard(safetensors_file(&one("F32", "[2]", "[0,8]"), 8)).unwrap()[0].num_bytes, 8);
    check("", 0, &["JSON"]);
    check("[]", 0, &["JSON"]);
    check(&"[".repeat(100_000), 0, &["JSON"]);
    check(&format!("{{\"__metadata__\":{}", "[".repeat(100_000)), 0, &["JSON"]);
    check(&one("F32", "[1000000000,1000000000]", "[0,8]"), 8, &["a of 4000000000000000000 bytes"]);
    check(&one("F32", "[1000000000,1000000000,1000000000]", "[0,8]"), 8, &["impossible number"]);
    check(&one("F32", "[0]", "[0,0]"), 0, &["impossible number"]);
    check(&one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, &["impossible number"]);
    check(&one("F32", "[-2]", "[0,8]"), 8, &["JSON"]);
    check(&one("F32", "[2]", "[8,0]"), 8, &["from 8 to 0"]);
    check(&one("F32", "[2]", "[8,16]"), 16, &["starts at byte"]);
    check(&one("F32", "[2]", "[18446744073709551607,18446744073709551615]"), 8, &["absurd offset"]);
    check(&one("F32", "[2]", "[0,8]"), 4, &["the file has"]);
    check(&format!("{{\"a\":{},\"a\":{}}}", entry("[0,8]"), entry("[8,16]")), 16, &["a occurs twice"]);
    check(&format!("{{\"a\":{},\"b\":{}}}", entry("[0,8]"), entry("[4,12]")), 12, &["b starts at byte"]);
    for dtype in ["I64", "F8_E4M3", "BOOL", "F64"] {
        check_unsupported(
            open_shard(safetensors_file(&one(dtype, "[2]", "[0,16]"), 16)),
            &["tensor a", dtype],
        );
    }
    for claimed in [u64::MAX, 1 << 40, (16 << 20) + 1] {
        check_malformed(open_shard(claimed.to_le_bytes().to_vec()), &["claims", &claimed.to_string()]);
    }
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    let error = open_shard(safetensors_file(&long, 0)).unwrap_err().to_string();
    assert!(error.len() < 600, "an error quotes {} bytes of the file", error.len());
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let config: Value = serde_json::from_slice(&golden("arch/llama3/config.json")).unwrap();
    let shard = || golden("arch/llama3/model.safetensors");
    check_malformed(open_hf(&config, vec![shard(), shard()]), &["another shard"]);
    check_malformed(open_hf(&config, vec![]), &["no .safetensors file"]);
}

#[test]
fn a_model_split_over_shards_opens_like_a_whole_one() {
    let config: Value = serde_json::from_slice(&golden("arch/llama3/config.json")).unwrap();
    let whole_bytes = golden("arch/llama3/model.safetensors");
    let parsed = safetensors::SafeTensors::deserialize(&whole_bytes).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (idx, (name, view)) in parsed.iter().enumerate() {
        if idx % 2 == 0 { first.push((name, view)) } else { second.push((name, view)) }
    }
    let shards = [second, first].map(|part| safetensors::serialize(part, None).unwrap());
    let split = open_hf(&config, shards.to_vec()).unwrap();
    let whole = open_fixture("llama3").unwrap();
    assert_eq!(split.total_bytes(), whole.total_bytes());
    for (role, info) in whole.tensors() {
        let other = split.tensor(role).unwrap();
        assert_eq!(elements(&whole, info, 5), elements(&split, other, 9), "{role:?}");
    }
}

#[test]
fn a_source_of_any_length_is_never_read_beyond_the_headers_limit() {
    let check = |head: Vec<u8>, claimed_bytes: u64| {
        let source = Endless { head, claimed_bytes, largest_read: Cell::new(0) };
        assert!(pollster::block_on(GgufFile::open(&&source)).is_err());
        assert!(pollster::block_on(open_safetensors(&&source, 0)).is_err());
        assert!(source.largest_read.get() <= MAX_READ);
    };
    let claims = |pairs: u64, rest: &[u8]| {
        [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &pairs.to_le_bytes(), rest].concat()
    };
    let long_string =
        [&1u64.to_le_bytes()[..], b"k", &8u32.to_le_bytes(), &(60u64 << 20).to_le_bytes()].concat();
    for claimed_bytes in [1 << 30, 1 << 60, u64::MAX] {
        check(Vec::new(), claimed_bytes);
        check(claims(65_536, &[]), claimed_bytes);
        check(claims(65_537, &[]), claimed_bytes);
        // The zeros behind it are pairs of an empty key, which may occur once.
        check(claims(3, &long_string), claimed_bytes);
        check((1u64 << 24).to_le_bytes().to_vec(), claimed_bytes);
    }
}
