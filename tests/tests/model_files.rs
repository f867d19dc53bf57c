//! Model files: what is read from real ones, and that damaged or hostile ones get an error and nothing worse.

use firstlight_engine::error::LoadError;
use firstlight_engine::model::{GgufFile, MemorySource, TensorType};

/// The default model, whole, in memory.
fn real_model() -> MemorySource {
    let name = std::env::var("FIRSTLIGHT_MODEL_FILE")
        .expect("FIRSTLIGHT_MODEL_FILE does not name the default model: run the tests by `cargo xtask test`");
    let bytes = std::fs::read(&name).unwrap_or_else(|error| panic!("cannot read {name}: {error}"));
    MemorySource { name, bytes }
}

fn open_gguf(source: &MemorySource) -> Result<GgufFile, LoadError> {
    pollster::block_on(GgufFile::open(source))
}

#[test]
fn the_default_models_metadata_and_tensors_are_read() {
    let file = open_gguf(&real_model()).unwrap();
    assert_eq!(file.str("general.architecture"), Ok(Some("llama")));
    assert_eq!(file.str("tokenizer.ggml.pre"), Ok(Some("smollm")));
    assert_eq!(file.u32("llama.block_count"), Ok(Some(30)));
    assert_eq!(file.f32("llama.rope.freq_base"), Ok(Some(100_000.0)));
    assert_eq!(file.bool("tokenizer.ggml.add_bos_token"), Ok(Some(false)));
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().unwrap()[1], "<|im_start|>");
    assert_eq!(file.strings("tokenizer.ggml.merges").unwrap().unwrap().len(), 48_900);
    assert_eq!(file.ints("tokenizer.ggml.token_type").unwrap().unwrap()[..2], [3, 3]);
    assert_eq!(file.str("no.such.key"), Ok(None));
    assert!(file.str("llama.block_count").is_err());
    assert_eq!(file.tensors.len(), 272);
    let embedding = &file.tensors[0];
    assert_eq!((embedding.dtype, &embedding.shape[..]), (TensorType::Q8_0, &[49_152, 576][..]));
    assert_eq!(embedding.num_bytes, 30_081_024);
}
