//! The browser's own storage (OPFS): a folder for each model, with its files and a list of what they should be.
//!
//! It downloads nothing. Invariant: a model counts as whole only when its list says so, which is written last.

use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    Blob, FileSystemDirectoryHandle, FileSystemFileHandle, FileSystemGetDirectoryOptions,
    FileSystemGetFileOptions, FileSystemReadWriteOptions, FileSystemRemoveOptions,
    FileSystemSyncAccessHandle, StorageEstimate, StorageManager, WorkerGlobalScope, js_sys,
};

use crate::browser::words;
use crate::protocol::{StorageFigures, StoredModel};

/// The folder of all models.
const FOLDER: &str = "firstlight-models";
/// The list in a model's folder.
const LIST: &str = "model.json";
/// The adapters whose kernels were found right.
const TESTED: &str = "firstlight-tested-adapters.json";

/// What a stored model should be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ModelList {
    /// What to call it.
    pub name: String,
    /// Its files.
    pub files: Vec<ListedFile>,
    /// All of them are here and were checked.
    pub whole: bool,
}

/// One file of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ListedFile {
    /// Its name.
    pub file: String,
    /// Its length; 0 where that is not known yet.
    pub bytes: u64,
    /// Of its bytes, in hexadecimal; of one that came without, what they had when they came.
    pub sha256: Option<String>,
    /// Where it came from; empty where it was dropped on the page.
    #[serde(default)]
    pub url: String,
}

/// This site's storage.
#[derive(Clone)]
pub struct Store {
    root: FileSystemDirectoryHandle,
    models: FileSystemDirectoryHandle,
}

/// A file that is being written. Nobody else can write it meanwhile.
pub struct Writing {
    handle: FileSystemSyncAccessHandle,
}

/// Why a file cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteError {
    /// Another tab writes it.
    Busy,
    /// There is no room.
    Full,
    /// Anything else, in the browser's words.
    Failed(String),
}

fn storage() -> Option<StorageManager> {
    let scope: WorkerGlobalScope = js_sys::global().unchecked_into();
    // Absent where the page came over plain HTTP from another machine.
    let storage: JsValue = scope.navigator().storage().into();
    storage.dyn_into().ok()
}

/// How much of this site's storage is in use.
pub async fn figures() -> Option<StorageFigures> {
    let estimate: StorageEstimate = JsFuture::from(storage()?.estimate().ok()?).await.ok()?.unchecked_into();
    Some(StorageFigures { used: estimate.get_usage()? as u64, quota: estimate.get_quota()? as u64 })
}

async fn folder_in(
    parent: &FileSystemDirectoryHandle,
    name: &str,
) -> Result<FileSystemDirectoryHandle, String> {
    let options = FileSystemGetDirectoryOptions::new();
    options.set_create(true);
    let folder = JsFuture::from(parent.get_directory_handle_with_options(name, &options)).await;
    folder.map(JsCast::unchecked_into).map_err(|error| words(&error))
}

async fn file_in(
    folder: &FileSystemDirectoryHandle,
    name: &str,
    create: bool,
) -> Result<FileSystemFileHandle, JsValue> {
    let options = FileSystemGetFileOptions::new();
    options.set_create(create);
    JsFuture::from(folder.get_file_handle_with_options(name, &options)).await.map(JsCast::unchecked_into)
}

async fn blob_of(folder: &FileSystemDirectoryHandle, name: &str) -> Option<Blob> {
    let handle = file_in(folder, name, false).await.ok()?;
    JsFuture::from(handle.get_file()).await.ok().map(JsCast::unchecked_into)
}

async fn text_of(folder: &FileSystemDirectoryHandle, name: &str) -> Option<String> {
    JsFuture::from(blob_of(folder, name).await?.text()).await.ok()?.as_string()
}

async fn write_text(folder: &FileSystemDirectoryHandle, name: &str, text: &str) -> Result<(), WriteError> {
    let writing = Writing::open(folder, name).await?;
    writing.truncate(0)?;
    writing.write(0, &js_sys::Uint8Array::from(text.as_bytes()))?;
    writing.close()
}

impl Store {
    /// The store; `Err` says why the browser gives none.
    ///
    /// # Errors
    /// A private window, a page that came over plain HTTP, a browser without it.
    pub async fn open() -> Result<Self, String> {
        let none = "this browser gives this page no storage of its own";
        let root = JsFuture::from(storage().ok_or(none)?.get_directory()).await;
        let root: FileSystemDirectoryHandle = root.map_err(|error| words(&error))?.unchecked_into();
        let models = folder_in(&root, FOLDER).await?;
        Ok(Self { root, models })
    }

    /// The list of the model `key`, if there is one.
    pub async fn list_of(&self, key: &str) -> Option<ModelList> {
        let folder = JsFuture::from(self.models.get_directory_handle(key)).await.ok()?;
        serde_json::from_slice(text_of(&folder.unchecked_into(), LIST).await?.as_bytes()).ok()
    }

    /// Writes the list of the model `key`.
    ///
    /// # Errors
    /// As for any file.
    pub async fn set_list(&self, key: &str, list: &ModelList) -> Result<(), WriteError> {
        let folder = folder_in(&self.models, key).await.map_err(WriteError::Failed)?;
        let text = serde_json::to_string(list).map_err(|error| WriteError::Failed(error.to_string()))?;
        write_text(&folder, LIST, &text).await
    }

    /// A file of the model `key`, to be read.
    pub async fn file(&self, key: &str, name: &str) -> Option<Blob> {
        let folder = JsFuture::from(self.models.get_directory_handle(key)).await.ok()?;
        blob_of(&folder.unchecked_into(), name).await
    }

    /// A file of the model `key`, to be written.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write(&self, key: &str, name: &str) -> Result<Writing, WriteError> {
        let folder = folder_in(&self.models, key).await.map_err(WriteError::Failed)?;
        Writing::open(&folder, name).await
    }

    /// Forgets the model `key`.
    ///
    /// # Errors
    /// Another tab is at it.
    pub async fn delete(&self, key: &str) -> Result<(), String> {
        let options = FileSystemRemoveOptions::new();
        options.set_recursive(true);
        let removed = JsFuture::from(self.models.remove_entry_with_options(key, &options)).await;
        removed.map(drop).map_err(|error| words(&error))
    }

    /// All models, whole or not.
    pub async fn models(&self) -> Vec<StoredModel> {
        let mut found = Vec::new();
        let keys = self.models.keys();
        while let Ok(next) = keys.next() {
            let Ok(step) = JsFuture::from(next).await else { break };
            let field = |name: &str| js_sys::Reflect::get(&step, &name.into()).unwrap_or(JsValue::UNDEFINED);
            if field("done").is_truthy() {
                break;
            }
            let Some(key) = field("value").as_string() else { continue };
            let Some(list) = self.list_of(&key).await else { continue };
            let mut bytes_here = 0;
            for file in &list.files {
                bytes_here += self.file(&key, &file.file).await.map_or(0, |blob| blob.size() as u64);
            }
            let bytes = list.files.iter().map(|file| file.bytes).sum::<u64>().max(bytes_here);
            let sha256 = match list.files.as_slice() {
                [one] => one.sha256.clone(),
                _ => None,
            };
            // One that is all here and was never checked is not whole yet: its last byte is still to be fetched.
            let bytes_here = if list.whole { bytes_here } else { bytes_here.min(bytes.saturating_sub(1)) };
            found.push(StoredModel { key, name: list.name, bytes, bytes_here, sha256 });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.key.cmp(&b.key)));
        found
    }

    /// Whether the kernels of `adapter` were found right before.
    pub async fn is_tested(&self, adapter: &str) -> bool {
        self.tested().await.iter().any(|tested| tested == adapter)
    }

    /// They are: not to be tested again.
    pub async fn set_tested(&self, adapter: &str) {
        let mut tested = self.tested().await;
        tested.push(adapter.to_owned());
        if let Ok(text) = serde_json::to_string(&tested) {
            // If it cannot be kept, they are tested again.
            let _ = write_text(&self.root, TESTED, &text).await;
        }
    }

    async fn tested(&self) -> Vec<String> {
        let text = text_of(&self.root, TESTED).await;
        text.and_then(|text| serde_json::from_slice(text.as_bytes()).ok()).unwrap_or_default()
    }
}

impl WriteError {
    fn of(error: &JsValue) -> Self {
        match error.dyn_ref::<web_sys::DomException>().map(web_sys::DomException::name).as_deref() {
            Some("NoModificationAllowedError") => Self::Busy,
            Some("QuotaExceededError") => Self::Full,
            _ => Self::Failed(words(error)),
        }
    }
}

impl Writing {
    async fn open(folder: &FileSystemDirectoryHandle, name: &str) -> Result<Self, WriteError> {
        let file = file_in(folder, name, true).await.map_err(|error| WriteError::of(&error))?;
        let handle = JsFuture::from(file.create_sync_access_handle()).await;
        let handle = handle.map_err(|error| WriteError::of(&error))?;
        Ok(Self { handle: handle.unchecked_into() })
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.handle.get_size().map_or(0, |size| size as u64)
    }

    /// Cuts it off.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn truncate(&self, len: u64) -> Result<(), WriteError> {
        self.handle.truncate_with_f64(len as f64).map_err(|error| WriteError::of(&error))
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// See [`WriteError`]; fewer bytes than asked for means that there is no room.
    pub fn write(&self, offset: u64, bytes: &js_sys::Uint8Array) -> Result<(), WriteError> {
        let options = FileSystemReadWriteOptions::new();
        options.set_at(offset as f64);
        let written = self.handle.write_with_js_u8_array_and_options(bytes, &options);
        match written {
            Ok(written) if written as u64 == u64::from(bytes.length()) => Ok(()),
            Ok(_) => Err(WriteError::Full),
            Err(error) => Err(WriteError::of(&error)),
        }
    }

    /// Reads up to `buffer.len()` bytes at `offset`; says how many came.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, WriteError> {
        let options = FileSystemReadWriteOptions::new();
        options.set_at(offset as f64);
        let read = self.handle.read_with_u8_array_and_options(buffer, &options);
        read.map(|read| read as usize).map_err(|error| WriteError::of(&error))
    }

    /// What was written outlives a crash of the browser from now on.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn flush(&self) -> Result<(), WriteError> {
        self.handle.flush().map_err(|error| WriteError::of(&error))
    }

    /// Flushes, and lets others at it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn close(self) -> Result<(), WriteError> {
        self.flush()
        // Dropping it closes it.
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.handle.close();
    }
}
