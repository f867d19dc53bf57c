//! Weights from a blob: a file of the browser's storage, one that was dropped on the page, or bytes that it keeps for us.
//!
//! Nothing is held here: each read brings its range and no more. Invariant: a range that does not come whole is an error.

use firstlight_engine::error::LoadError;
use firstlight_engine::model::WeightSource;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, js_sys};

use crate::browser::words;

/// A file of a model.
#[derive(Clone, Debug)]
pub struct BlobSource {
    /// What to call it in an error.
    pub name: String,
    /// All of it.
    pub blob: Blob,
}

impl BlobSource {
    /// A range of it.
    ///
    /// # Errors
    /// What the browser says, in its words.
    pub async fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        let failed = |reason: String| LoadError::Read { name: self.name.clone(), reason };
        // Below 2^53 a number of JavaScript's is exact.
        let (from, to) = (offset as f64, offset.saturating_add(len as u64) as f64);
        let part = self.blob.slice_with_f64_and_f64(from, to).map_err(|error| failed(words(&error)))?;
        let buffer = JsFuture::from(part.array_buffer()).await.map_err(|error| failed(words(&error)))?;
        let buffer: js_sys::ArrayBuffer = buffer.dyn_into().map_err(|_| failed("no bytes came".into()))?;
        let bytes = js_sys::Uint8Array::new(&buffer).to_vec();
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(failed(format!("{} bytes came of the {len} from {offset} on", bytes.len()))),
        }
    }

    /// All of a file that is text, if it has no more than `most` bytes.
    ///
    /// # Errors
    /// It is larger, or cannot be read.
    pub async fn whole(&self, most: u64) -> Result<Vec<u8>, LoadError> {
        let len = self.len();
        if len > most {
            let reason = format!("it has {len} bytes; at most {most} are read");
            return Err(LoadError::Read { name: self.name.clone(), reason });
        }
        self.bytes(0, len as usize).await
    }
}

impl WeightSource for BlobSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.blob.size() as u64
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        self.bytes(offset, len).await
    }
}
