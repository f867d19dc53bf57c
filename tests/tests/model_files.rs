//! Model files: what is read from sound ones, and which are refused by name. Damaged ones are in `hostile`.

// The path holds whichever file is the root of the test binary.
#[path = "model_files/hostile.rs"]
mod hostile;

use firstlight_engine::error::LoadError;
use firstlight_engine::model::{
    Checkpoint, GgufFile, GgufValue, MemorySource, ModelConfig, RopeLayout, RopeScaling, TensorInfo,
    TensorRole, WeightSource, dequantise, shard_names,
};
use firstlight_shaders::WeightFormat;
use firstlight_tests::gguf_writer::{GgufWriter, quantise, reference_dequantise};
use firstlight_tests::tiny_model::{Random, TinyModel};
use firstlight_tests::{FileSource, default_model_path};
use serde_json::{Value, json};

const ALL_TYPES: [WeightFormat; 6] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::Q8_0,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
];

fn memory(name: &str, bytes: Vec<u8>) -> MemorySource {
    MemorySource { name: name.to_owned(), bytes }
}

/// The default model.
fn real_model() -> FileSource {
    FileSource::open(&default_model_path()).expect("readable")
}

fn golden(path: &str) -> Vec<u8> {
    let path = format!("{}/golden/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

fn open_gguf(bytes: Vec<u8>) -> Result<Checkpoint<MemorySource>, LoadError> {
    pollster::block_on(Checkpoint::open_gguf(memory("model.gguf", bytes)))
}

fn open_hf(config: &Value, shards: Vec<Vec<u8>>) -> Result<Checkpoint<MemorySource>, LoadError> {
    let shards = shards.into_iter().map(|bytes| memory("model.safetensors", bytes)).collect();
    pollster::block_on(Checkpoint::open_safetensors(config.to_string().as_bytes(), shards))
}

fn open_fixture(name: &str) -> Result<Checkpoint<MemorySource>, LoadError> {
    let config: Value =
        serde_json::from_slice(&golden(&format!("arch/{name}/config.json"))).expect("a JSON fixture");
    open_hf(&config, vec![golden(&format!("arch/{name}/model.safetensors"))])
}

/// All elements of a tensor, read in pieces of `rows` rows.
fn elements<S: WeightSource>(checkpoint: &Checkpoint<S>, info: &TensorInfo, rows: u64) -> Vec<f32> {
    let row_bytes = info.num_bytes / info.shape[0];
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < info.num_bytes {
        let len = (rows * row_bytes).min(info.num_bytes - bytes.len() as u64) as usize;
        bytes.extend(
            pollster::block_on(checkpoint.read(info, bytes.len() as u64, len))
                .expect("a range of the tensor"),
        );
    }
    dequantise(info.dtype, &bytes)
}

/// `result` is an `Unsupported` whose sentence has all of `words`.
fn check_unsupported<T>(result: Result<T, LoadError>, words: &[&str]) {
    let error = result.err().unwrap_or_else(|| panic!("accepted, and {words:?} should be refused"));
    assert!(matches!(error, LoadError::Unsupported { .. }), "{words:?}: {error}");
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{words:?}: {error}");
}

/// `result` is a `Malformed` whose sentence has all of `words`.
fn check_malformed<T>(result: Result<T, LoadError>, words: &[&str]) {
    let error = result.err().unwrap_or_else(|| panic!("accepted, and {words:?} should be an error"));
    assert!(matches!(error, LoadError::Malformed { .. }), "{words:?}: {error}");
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{words:?}: {error}");
}

#[test]
fn the_default_models_metadata_and_tensors_are_read() {
    let file = pollster::block_on(GgufFile::open(&real_model())).unwrap();
    assert_eq!(file.str("general.architecture"), Ok(Some("llama")));
    assert_eq!(file.str("tokenizer.ggml.pre"), Ok(Some("smollm")));
    assert_eq!(file.u32("llama.block_count"), Ok(Some(30)));
    assert_eq!(file.f32("llama.rope.freq_base"), Ok(Some(100_000.0)));
    assert_eq!(file.bool("tokenizer.ggml.add_bos_token"), Ok(Some(false)));
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().unwrap()[1], "<|im_start|>");
    assert_eq!(file.strings("tokenizer.ggml.merges").unwrap().unwrap().len(), 48_900);
    assert_eq!(file.ints("tokenizer.ggml.token_type").unwrap().unwrap()[..2], [3, 3]);
    assert_eq!(file.str("no.such.key"), Ok(None));
    check_malformed(file.str("llama.block_count"), &["llama.block_count", "a string", "unsigned integer"]);
    assert_eq!(file.tensors.len(), 272);
}

#[test]
fn the_default_model_opens_with_its_configuration() {
    let checkpoint = pollster::block_on(Checkpoint::open_gguf(real_model())).unwrap();
    let config = checkpoint.config();
    let sizes = [config.hidden_size, config.intermediate_size, config.num_layers, config.vocab_size];
    assert_eq!(sizes, [576, 1536, 30, 49_152]);
    assert_eq!(
        [config.num_heads, config.num_kv_heads, config.head_dim, config.max_context],
        [9, 3, 64, 8192]
    );
    assert_eq!((config.rope_theta, config.rope_scaling), (100_000.0, RopeScaling::None));
    assert_eq!((config.rope_layout, config.tie_embeddings), (RopeLayout::Interleaved, true));
    assert_eq!((config.bos_token, &config.eos_tokens[..]), (Some(1), &[2][..]));
    assert!(!config.attention_bias && !config.mlp_bias);
    assert_eq!(checkpoint.quantisation(), "Q4_1");
    assert!(checkpoint.gguf().is_some());
    assert_eq!(checkpoint.tensor(TensorRole::Head), None);
    let embedding = checkpoint.tensor(TensorRole::Embedding).unwrap();
    assert_eq!((embedding.dtype, embedding.num_bytes), (WeightFormat::Q8_0, 30_081_024));
}

#[test]
fn embedding_rows_of_the_default_model_are_the_references_hidden_state_0() {
    let checkpoint = pollster::block_on(Checkpoint::open_gguf(real_model())).unwrap();
    let embedding = checkpoint.tensor(TensorRole::Embedding).unwrap();
    let row_bytes = embedding.num_bytes / embedding.shape[0];
    let file = golden("hidden_capital.safetensors");
    let hidden = safetensors::SafeTensors::deserialize(&file).unwrap();
    let reference = dequantise(WeightFormat::F32, hidden.tensor("hidden.0").unwrap().data());
    let all: Value = serde_json::from_slice(&golden("golden.json")).unwrap();
    let prompts = all["prompts"].as_array().unwrap();
    let ids = &prompts.iter().find(|prompt| prompt["name"] == "capital").unwrap()["input_ids"];
    let ids: Vec<u64> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(reference.len(), ids.len() * 576);
    for (position, id) in ids.into_iter().enumerate() {
        let row = checkpoint.read(embedding, id * row_bytes, row_bytes as usize);
        let row = dequantise(embedding.dtype, &pollster::block_on(row).unwrap());
        assert_eq!(row, reference[position * 576..][..576], "position {position}, token {id}");
    }
}

#[test]
fn every_tensor_type_is_dequantised_as_its_format_defines() {
    let mut random = Random(7);
    let values: Vec<f32> = (0..32 * 40).map(|_| 3.0 * random.signed()).collect();
    // Largest error: half a step of the block's range (6 over 255, 14 or 15 steps) and the scale's own rounding.
    let bounds = [0.0, 0.002, 0.012, 0.013, 0.23, 0.21];
    for (dtype, bound) in ALL_TYPES.into_iter().zip(bounds) {
        let stored = quantise(dtype, &values);
        assert_eq!(stored.len() as u64, dtype.tensor_bytes(&[40, 32]).unwrap(), "{dtype:?}");
        let read = dequantise(dtype, &stored);
        assert_eq!(read, reference_dequantise(dtype, &stored), "{dtype:?}");
        let worst = read.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= bound, "{dtype:?}: {worst}");
    }
}

#[test]
fn tiny_models_of_every_type_open_and_read_the_same_by_rows_as_at_once() {
    for matrix_type in ALL_TYPES {
        for (tied, biases) in [(true, false), (false, true)] {
            let model = TinyModel { matrix_type, tied, biases, ..TinyModel::default() };
            let bytes = model.gguf().bytes();
            let checkpoint = open_gguf(bytes.clone()).unwrap();
            let config = checkpoint.config();
            assert_eq!(
                (config.tie_embeddings, config.attention_bias, config.mlp_bias),
                (tied, biases, biases)
            );
            assert_eq!(checkpoint.quantisation(), matrix_type.title());
            assert!(checkpoint.total_bytes() <= bytes.len() as u64);
            for (role, info) in checkpoint.tensors() {
                let start = info.offset as usize;
                let stored = &bytes[start..start + info.num_bytes as usize];
                let expected = reference_dequantise(info.dtype, stored);
                assert_eq!(elements(&checkpoint, info, 3), expected, "{role:?}");
            }
        }
    }
}

#[test]
fn reads_beyond_a_tensor_are_refused() {
    let checkpoint = open_gguf(TinyModel::default().gguf().bytes()).unwrap();
    let info = checkpoint.tensor(TensorRole::OutputNorm).unwrap();
    for (first, len) in [(0, 257), (256, 1), (u64::MAX, 1), (u64::MAX, usize::MAX)] {
        check_malformed(
            pollster::block_on(checkpoint.read(info, first, len)),
            &["output_norm.weight", "256"],
        );
    }
    assert_eq!(pollster::block_on(checkpoint.read(info, 256, 0)), Ok(Vec::new()));
}

#[test]
fn fixtures_of_the_llama_family_open() {
    let llama3 = open_fixture("llama3").unwrap();
    let config = llama3.config();
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 64,
    };
    assert_eq!((config.rope_theta, config.rope_scaling), (500_000.0, scaling));
    assert_eq!((config.rope_layout, config.tie_embeddings), (RopeLayout::Halves, true));
    assert_eq!(llama3.quantisation(), "BF16");
    let untied = open_fixture("llama-untied-bias").unwrap();
    assert!(!untied.config().tie_embeddings && untied.config().attention_bias && untied.config().mlp_bias);
    assert_eq!(untied.tensor(TensorRole::Head).unwrap().shape, [512, 64]);
    assert_eq!(untied.tensor(TensorRole::GateBias(2)).unwrap().shape, [160]);
    assert_eq!(untied.config().eos_tokens, [2]);
}

#[test]
fn fixtures_of_other_architectures_are_refused_by_name() {
    for name in ["mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3"] {
        check_unsupported(open_fixture(name), &[name, "llama (LlamaForCausalLM) is supported"]);
    }
}

#[test]
fn settings_of_a_config_json_that_change_the_mathematics_are_refused_by_name() {
    let check = |key: &str, value: Value, named: &str| {
        let mut config: Value = serde_json::from_slice(&golden("arch/llama3/config.json")).unwrap();
        config[key] = value;
        check_unsupported(
            ModelConfig::from_config_json("config.json", config.to_string().as_bytes()),
            &[named],
        );
    };
    check("sliding_window", json!(16), "sliding_window");
    check("use_sliding_window", json!(true), "use_sliding_window");
    check("attn_logit_softcapping", json!(50.0), "attn_logit_softcapping");
    check("final_logit_softcapping", json!(30.0), "final_logit_softcapping");
    check("use_qk_norm", json!(true), "use_qk_norm");
    check("partial_rotary_factor", json!(0.5), "partial_rotary_factor");
    check("hidden_act", json!("gelu"), "gelu");
    check("num_local_experts", json!(8), "num_local_experts");
    check("no_rope_layers", json!([1, 1, 0]), "no_rope_layers");
    check("layer_types", json!(["full_attention", "sliding_attention"]), "layer_types");
    check("logits_scaling", json!(8.0), "logits_scaling");
    check("attention_multiplier", json!(0.1), "attention_multiplier");
    check("residual_multiplier", json!(0.22), "residual_multiplier");
    check("embedding_multiplier", json!(12.0), "embedding_multiplier");
    check("pretraining_tp", json!(2), "pretraining_tp");
    check("rope_interleaved", json!(true), "rope_interleaved");
    check("quantization_config", json!({"quant_method": "awq"}), "quantization_config");
    check("architectures", json!(["LlamaForSequenceClassification"]), "LlamaForSequenceClassification");
    check("head_dim", json!(20), "multiple of 8");
    check("num_hidden_layers", json!(5000), "1 to 1024");
    for rule in ["yarn", "dynamic", "longrope"] {
        check("rope_parameters", json!({"rope_type": rule, "factor": 4.0}), rule);
    }
    check(
        "rope_parameters",
        json!({"rope_type": "default", "partial_rotary_factor": 0.5}),
        "partial_rotary_factor",
    );
    check("rope_parameters", json!({"rope_type": "linear", "factor": 2.0, "mscale": 2.0}), "mscale");
}

#[test]
fn settings_of_a_config_json_that_are_switched_off_are_accepted_and_defaults_hold() {
    let minimal = json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 4});
    let read = |extra: Value| {
        let mut config = minimal.clone();
        for (key, value) in extra.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelConfig::from_config_json("config.json", config.to_string().as_bytes())
    };
    let plain = read(json!({})).unwrap();
    assert_eq!((plain.num_kv_heads, plain.head_dim, plain.rope_theta), (4, 16, 10_000.0));
    assert_eq!((plain.rms_norm_eps, plain.tie_embeddings, plain.bos_token), (1e-6, false, None));
    let off = json!({"sliding_window": null, "use_sliding_window": false, "pretraining_tp": 1, "rope_interleaved": false,
        "rope_scaling": null, "layer_types": ["full_attention"], "num_experts": 0, "max_window_layers": 28,
        "attention_dropout": 0.1, "torch_dtype": "bfloat16", "bos_token_id": null, "pad_token_id": -1});
    assert_eq!(read(off).unwrap(), plain);
    let linear = json!({"rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 2.0}});
    let linear = read(linear).unwrap();
    assert_eq!((linear.rope_theta, linear.rope_scaling), (5000.0, RopeScaling::Linear { factor: 2.0 }));
    assert_eq!(read(json!({"eos_token_id": [7, 9, 7, -1]})).unwrap().eos_tokens, [7, 9]);
    check_malformed(read(json!({"vocab_size": null})), &["vocab_size is missing"]);
    check_malformed(read(json!({"vocab_size": "many"})), &["vocab_size", "many"]);
    check_malformed(read(json!({"num_key_value_heads": 3})), &["4 heads", "3 key-value"]);
    check_malformed(read(json!({"hidden_size": 66})), &["4 heads do not divide the width 66"]);
    check_malformed(read(json!({"bos_token_id": 512})), &["BOS", "512"]);
    check_malformed(read(json!({"rms_norm_eps": 0})), &["epsilon"]);
    let equal = json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
        "original_max_position_embeddings": 64});
    check_malformed(read(json!({"rope_scaling": equal})), &["rope scaling", "low frequency factor"]);
}

#[test]
fn settings_of_a_gguf_file_that_change_the_mathematics_are_refused_by_name() {
    let check = |key: &str, value: GgufValue, named: &[&str]| {
        check_unsupported(open_gguf(TinyModel::default().gguf().set(key, &value).bytes()), named);
    };
    let text = |text: &str| GgufValue::Str(text.into());
    check("general.architecture", text("qwen2"), &["qwen2", "llama is supported"]);
    check("general.type", text("adapter"), &["adapter"]);
    check("split.count", GgufValue::Uint(3), &["split.count", "3"]);
    check("llama.expert_count", GgufValue::Uint(8), &["llama.expert_count", "8"]);
    check("llama.attention.sliding_window", GgufValue::Uint(4096), &["sliding_window", "4096"]);
    check("llama.logit_scale", GgufValue::Float(0.5), &["llama.logit_scale", "0.5"]);
    check("llama.never_heard_of", GgufValue::Float(0.5), &["llama.never_heard_of"]);
    check("llama.rope.scaling.type", text("yarn"), &["yarn"]);
    check("llama.rope.dimension_count", GgufValue::Uint(8), &["rope.dimension_count", "8", "16"]);
    check("llama.attention.value_length", GgufValue::Uint(32), &["value_length", "32"]);
    check("llama.attention.head_count_kv", GgufValue::Ints(vec![2, 2]), &["head_count_kv", "array"]);
    check("llama.attention.causal", GgufValue::Bool(false), &["causal"]);
}

#[test]
fn rope_scaling_of_a_gguf_file_is_read_in_all_its_forms() {
    let check = |pairs: &[(&str, GgufValue)], expected: RopeScaling| {
        let mut writer = TinyModel::default().gguf();
        for (key, value) in pairs {
            writer.set(key, value);
        }
        assert_eq!(open_gguf(writer.bytes()).unwrap().config().rope_scaling, expected, "{pairs:?}");
    };
    let (kind, factor) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let linear = RopeScaling::Linear { factor: 4.0 };
    check(&[], RopeScaling::None);
    check(&[(kind, GgufValue::Str("none".into()))], RopeScaling::None);
    check(&[(kind, GgufValue::Str("linear".into())), (factor, GgufValue::Float(4.0))], linear);
    check(&[(factor, GgufValue::Float(4.0))], linear);
    check(&[("llama.rope.scale_linear", GgufValue::Float(4.0))], linear);
    let mut writer = TinyModel::default().gguf();
    writer.tensor("rope_freqs.weight", WeightFormat::F32, &[8], &[1.0; 8]);
    let checkpoint = open_gguf(writer.bytes()).unwrap();
    assert_eq!(checkpoint.tensor(TensorRole::RopeFreqs).unwrap().shape, [8]);
    check_unsupported(open_gguf(writer.set(factor, &GgufValue::Float(4.0)).bytes()), &["rope_freqs.weight"]);
}

#[test]
fn tensors_that_are_missing_superfluous_or_of_the_wrong_shape_are_named() {
    let without = |name: &str| {
        let mut writer = TinyModel::default().gguf();
        writer.tensors.retain(|tensor| tensor.name != name.as_bytes());
        open_gguf(writer.bytes())
    };
    check_malformed(without("blk.1.ffn_up.weight"), &["blk.1.ffn_up.weight", "[96, 64]", "missing"]);
    check_malformed(without("token_embd.weight"), &["token_embd.weight", "missing"]);
    let with = |name: &str, shape: &[u64]| {
        let values = vec![0.0; shape.iter().product::<u64>() as usize];
        open_gguf(TinyModel::default().gguf().tensor(name, WeightFormat::F32, shape, &values).bytes())
    };
    check_unsupported(with("blk.0.attn_q_norm.weight", &[16]), &["blk.0.attn_q_norm.weight"]);
    check_unsupported(with("blk.0.ffn_gate_exps.weight", &[4, 2, 2]), &["blk.0.ffn_gate_exps.weight"]);
    check_unsupported(with("blk.00.attn_q.bias", &[64]), &["blk.00.attn_q.bias"]);
    check_malformed(with("blk.2.attn_norm.weight", &[64]), &["blk.2.attn_norm.weight", "2 layers"]);
    check_malformed(with("blk.0.attn_q.bias", &[32]), &["blk.0.attn_q.bias", "[32]", "[64]"]);
    check_malformed(with("output.weight", &[64, 160]), &["output.weight", "[64, 160]", "[160, 64]"]);
    // One bias alone is possible: the others are zeros.
    let one_bias = with("blk.0.attn_q.bias", &[64]).unwrap();
    assert!(one_bias.config().attention_bias && one_bias.tensor(TensorRole::KBias(0)).is_none());
    assert!(with("blk.0.attn_rot_embd.weight", &[8]).is_ok());
    let mut config: Value = serde_json::from_slice(&golden("arch/llama-untied-bias/config.json")).unwrap();
    config["mlp_bias"] = json!(false);
    let shards = || vec![golden("arch/llama-untied-bias/model.safetensors")];
    check_unsupported(open_hf(&config, shards()), &["mlp.", "bias"]);
    config["mlp_bias"] = json!(true);
    config["vocab_size"] = json!(500);
    check_malformed(open_hf(&config, shards()), &["[512, 64]", "[500, 64]"]);
}

#[test]
fn the_index_names_the_shards() {
    let read = |index: Value| shard_names("model.safetensors.index.json", index.to_string().as_bytes());
    let map = |name: &str| json!({"metadata": {"total_size": 8}, "weight_map": {"a": "b.safetensors", "b": name, "c": name}});
    assert_eq!(read(map("a.safetensors")).unwrap(), ["a.safetensors", "b.safetensors"]);
    for hostile in ["../a.safetensors", "/etc/a.safetensors", "c:a.safetensors", "x\\a.safetensors", "a.bin"]
    {
        check_malformed(read(map(hostile)), &["plain .safetensors"]);
    }
    check_malformed(read(json!({"weights": {}})), &["weight_map"]);
}
