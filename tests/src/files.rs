//! Files that tests read: the default model and the golden references.

use std::env;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use firstlight_engine::error::LoadError;
use firstlight_engine::model::{GgufFile, WeightSource};
use firstlight_engine::text::GgufTokenizer;

/// The default model's file: `FIRSTLIGHT_MODEL_FILE`, else where `cargo xtask` keeps it. Panics where there is none: a
/// test that needs the model never passes without it.
pub fn default_model_path() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || set("HOME").unwrap_or_default();
    let path = set("FIRSTLIGHT_MODEL_FILE").unwrap_or_else(|| {
        let cache = set("FIRSTLIGHT_CACHE").unwrap_or_else(|| match env::consts::OS {
            "windows" => set("LOCALAPPDATA").unwrap_or_default(),
            "macos" => home().join("Library/Caches"),
            _ => set("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache")),
        });
        cache.join("firstlight").join("models").join("SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    assert!(
        path.is_file(),
        "the default model is not at {}: run `cargo xtask test`, which fetches it, or set FIRSTLIGHT_MODEL_FILE",
        path.display()
    );
    path
}

/// A file under `tests/golden`.
pub fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// A file on disk as a source of weights.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    num_bytes: u64,
}

impl FileSource {
    /// Panics where the file cannot be read.
    pub fn open(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { path: path.to_owned(), num_bytes: metadata.len() }
    }
}

impl WeightSource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }
    fn len(&self) -> u64 {
        self.num_bytes
    }
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        let read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = vec![0; len];
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|e: std::io::Error| LoadError::Read { name: self.name(), reason: e.to_string() })
    }
}

/// What a GGUF file's metadata says about its tokenizer.
pub fn gguf_tokenizer(file: &GgufFile) -> Result<GgufTokenizer, LoadError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| file.u32(&key(&format!("{name}_token_id")));
    let types = file.ints(&key("token_type"))?.unwrap_or_default();
    Ok(GgufTokenizer {
        model: file.str(&key("model"))?.unwrap_or_default().to_owned(),
        pre: file.str(&key("pre"))?.map(str::to_owned),
        tokens: file.strings(&key("tokens"))?.unwrap_or_default(),
        merges: file.strings(&key("merges"))?.unwrap_or_default(),
        token_types: types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(0)).collect(),
        scores: file.floats(&key("scores"))?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        unk: id("unknown")?,
        eot: id("eot")?,
        eom: id("eom")?,
        add_bos: file.bool(&key("add_bos_token"))?,
        add_space_prefix: file.bool(&key("add_space_prefix"))?,
        chat_template: file.str("tokenizer.chat_template")?.map(str::to_owned),
    })
}
