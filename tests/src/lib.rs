//! Shared fixtures of the test suite.

mod files;
pub mod gguf_writer;
pub mod gpu;
pub mod lint;
pub mod programs;
mod random;
pub mod reference;
pub mod scripted;
pub mod served;
pub mod tiny_model;

pub use files::{
    browser_script, browser_tools, clients_python, default_model_path, golden_path, load_python, script_path,
};
pub use firstlight::source::FileSource;
pub use random::TestRng;

/// Whether the long runs are wanted too: `cargo xtask test --full`.
pub fn full() -> bool {
    std::env::var_os("FIRSTLIGHT_TEST_FULL").is_some()
}
