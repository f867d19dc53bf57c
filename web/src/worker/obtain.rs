//! From a wanted model to files that can be read: stored ones checked, missing ones fetched, broken downloads taken up again.
//!
//! Invariant: nothing is handed on whose SHA-256 is known and was not found again; and what has no room in the browser's
//! storage is used all the same.

use sha2::{Digest, Sha256};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, Blob, js_sys};

use super::blob::BlobSource;
use super::catalog::Wanted;
use super::fetch::sleep;
use super::incoming::{Incoming, Origin, STOPPED};
use super::meter::Meter;
use super::notice;
use super::store::{ModelList, Store, WriteError, Writing, figures};
use crate::protocol::Stage;

/// A connection that broke off is taken up again so often without a byte in between.
const MAX_RETRIES: u32 = 4;
/// Between two attempts, times the number of the attempt.
const RETRY_MS: i32 = 500;
/// How often another tab is looked after.
const BUSY_MS: i32 = 400;
/// A piece of a file that is hashed at a time.
const PIECE_BYTES: usize = 4 << 20;
/// What was written is flushed after so many bytes: a crash costs no more.
const FLUSH_BYTES: u64 = 8 << 20;

/// A model whose files are here.
pub struct Obtained {
    /// What it should be, and is.
    pub list: ModelList,
    /// Its files, in that order.
    pub files: Vec<BlobSource>,
    /// Whether the next visit finds it here.
    pub kept: bool,
}

impl Obtained {
    /// The file of this name.
    pub fn file(&self, name: &str) -> Option<&BlobSource> {
        self.files.iter().find(|source| source.name == name)
    }
}

/// Brings the model here.
///
/// # Errors
/// In a sentence, with what to do next; [`STOPPED`] where somebody stopped it.
pub async fn obtain(wanted: Wanted, store: Option<&Store>, stop: &AbortSignal) -> Result<Obtained, String> {
    let Wanted { key, mut list, origins } = wanted;
    let mut files = Vec::new();
    let room = match store {
        Some(store) => room_for(store, &key, &list).await,
        None => false,
    };
    let mut kept = room;
    for (idx, origin) in origins.iter().enumerate() {
        let stored = match store.filter(|_| kept) {
            Some(store) => keep(store, &key, &mut list, idx, origin.as_ref(), stop).await?,
            None => None,
        };
        let blob = match stored {
            Some(blob) => blob,
            None => {
                kept = false;
                in_memory(store, &key, &mut list, idx, origin.as_ref(), stop).await?
            }
        };
        files.push(BlobSource { name: list.files[idx].file.clone(), blob });
    }
    if let Some(store) = store.filter(|_| kept) {
        list.whole = true;
        if store.set_list(&key, &list).await.is_err() {
            kept = false;
        }
    }
    Ok(Obtained { list, files, kept })
}

/// Whether the model has room in the store; says so where it has not.
async fn room_for(store: &Store, key: &str, list: &ModelList) -> bool {
    let mut here = 0;
    for file in &list.files {
        here += store.file(key, &file.file).await.map_or(0, |blob| blob.size() as u64);
    }
    let needed = list.files.iter().map(|file| file.bytes).sum::<u64>().saturating_sub(here);
    match figures().await {
        Some(storage) if storage.quota.saturating_sub(storage.used) < needed => {
            not_kept(&list.name, needed).await;
            false
        }
        _ => true,
    }
}

async fn not_kept(name: &str, needed: u64) {
    let figures = match figures().await {
        // Some browsers tell every site the same quota, so that nobody is known by it.
        Some(storage) if storage.quota.saturating_sub(storage.used) >= needed => format!(
            "the browser refused to store so much, although it names {} bytes that this site may use, {} of them in use",
            storage.quota, storage.used
        ),
        Some(storage) => format!("this site may use {} bytes and uses {}", storage.quota, storage.used),
        None => "the browser does not say how much there is".to_owned(),
    };
    notice(&format!(
        "{name} runs, but is not kept for the next visit: it needs {needed} bytes of storage, and {figures}. Delete a stored model or free some disk space to keep it."
    ));
}

/// A file in the store: found right, or fetched. `None` where there is no room for it.
async fn keep(
    store: &Store,
    key: &str,
    list: &mut ModelList,
    idx: usize,
    origin: Option<&Origin>,
    stop: &AbortSignal,
) -> Result<Option<Blob>, String> {
    let mut is_second_try = false;
    loop {
        let writing = match free_for_writing(store, key, list, idx, stop).await {
            Ok(writing) => writing,
            Err(WriteError::Full) => return Ok(None),
            Err(WriteError::Failed(why)) if why == STOPPED => return Err(why),
            Err(WriteError::Failed(why)) => {
                notice(&format!("The browser's storage cannot be written ({why}): the model is not kept."));
                return Ok(None);
            }
            Err(WriteError::Busy) => continue,
        };
        // Another tab may have written it while this one waited.
        if let Some(now) = store.list_of(key).await.filter(|now| now.files.len() == list.files.len()) {
            let file = &now.files[idx];
            let expected = &list.files[idx].sha256;
            if file.sha256.is_some() && (expected.is_none() || *expected == file.sha256) {
                list.files[idx] = file.clone();
            }
        }
        match complete(&writing, list, idx, origin, stop).await {
            Ok(()) => {}
            Err(Incomplete::Full) => return Ok(None),
            Err(Incomplete::Told(sentence)) => return Err(sentence),
            Err(Incomplete::Damaged(sentence)) => {
                writing.truncate(0).map_err(|error| format!("{error:?}"))?;
                if origin.is_none() {
                    return Err(format!("{sentence}; drop the file on the page again"));
                }
                if is_second_try {
                    return Err(format!("{sentence}, for the second time; choose another source"));
                }
                is_second_try = true;
                notice(&format!("{sentence}. It is fetched again."));
                continue;
            }
        }
        if writing.close().is_err() {
            return Ok(None);
        }
        if store.set_list(key, list).await.is_err() {
            return Ok(None);
        }
        return Ok(store.file(key, &list.files[idx].file).await);
    }
}

/// Waits while another tab writes the file.
async fn free_for_writing(
    store: &Store,
    key: &str,
    list: &ModelList,
    idx: usize,
    stop: &AbortSignal,
) -> Result<Writing, WriteError> {
    // So that a reload in mid-download finds what it was about.
    if store.list_of(key).await.is_none() {
        store.set_list(key, list).await?;
    }
    let mut meter = None;
    loop {
        match store.write(key, &list.files[idx].file).await {
            Err(WriteError::Busy) => {
                let file = Some(list.files[idx].file.clone());
                meter.get_or_insert_with(|| Meter::begin(Stage::Waiting, file, 0, None));
                sleep(BUSY_MS).await;
                if stop.aborted() {
                    return Err(WriteError::Failed(STOPPED.into()));
                }
            }
            other => return other,
        }
    }
}

/// Why a file is not complete.
enum Incomplete {
    /// There is no room.
    Full,
    /// What is here is not what it should be.
    Damaged(String),
    /// In a sentence.
    Told(String),
}

impl From<WriteError> for Incomplete {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Full => Self::Full,
            WriteError::Busy => Self::Told("another tab took the file away".into()),
            WriteError::Failed(why) => {
                Self::Told(format!("the browser's storage failed: {why}; reload the page"))
            }
        }
    }
}

/// Hashes what is here, fetches what is missing, and compares.
async fn complete(
    writing: &Writing,
    list: &mut ModelList,
    idx: usize,
    origin: Option<&Origin>,
    stop: &AbortSignal,
) -> Result<(), Incomplete> {
    let file = &mut list.files[idx];
    let expected = Some(file.bytes).filter(|bytes| *bytes > 0);
    if expected.is_some_and(|bytes| writing.len() > bytes) {
        writing.truncate(0)?;
    }
    let mut hash = Sha256::new();
    let mut at = hash_stored(writing, &file.file, &mut hash, stop).await?;
    let is_known_whole = expected == Some(at) && file.sha256.is_some();
    if !is_known_whole {
        let origin = origin.ok_or_else(|| {
            Incomplete::Told(format!("{} is not whole here; drop the file on the page again", file.file))
        })?;
        let mut failures = 0;
        let mut meter = None;
        while expected.is_none_or(|bytes| at < bytes) {
            let before = at;
            let mut sink = Sink { writing, hash: &mut hash, at: &mut at };
            match fetch_rest(&mut sink, origin, expected, &file.file, &mut meter, stop).await {
                Ok(()) => break,
                Err(Incomplete::Told(sentence)) if sentence != STOPPED => {
                    failures = if at > before { 1 } else { failures + 1 };
                    if failures > MAX_RETRIES || stop.aborted() {
                        return Err(Incomplete::Told(format!(
                            "{sentence}; {at} bytes are kept: start it again to go on from there"
                        )));
                    }
                    sleep(RETRY_MS * failures as i32).await;
                }
                Err(other) => return Err(other),
            }
        }
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if let Some(bytes) = expected.filter(|bytes| *bytes != at) {
        let sentence = format!("{} has {at} bytes where {bytes} are expected", file.file);
        return Err(Incomplete::Damaged(sentence));
    }
    match &file.sha256 {
        Some(expected) if *expected != found => Err(Incomplete::Damaged(format!(
            "{} is damaged: its SHA-256 is {found}, and {expected} is expected",
            file.file
        ))),
        _ => {
            file.sha256 = Some(found);
            file.bytes = at;
            Ok(())
        }
    }
}

async fn hash_stored(
    writing: &Writing,
    name: &str,
    hash: &mut Sha256,
    stop: &AbortSignal,
) -> Result<u64, Incomplete> {
    let len = writing.len();
    if len == 0 {
        return Ok(0);
    }
    let mut meter = Meter::begin(Stage::Check, Some(name.to_owned()), 0, Some(len));
    let mut piece = vec![0; PIECE_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        let read = writing.read(at, &mut piece)?;
        if read == 0 {
            break;
        }
        hash.update(&piece[..read]);
        at += read as u64;
        meter.set(at);
        // Lets a stop come through.
        sleep(0).await;
        if stop.aborted() {
            return Err(Incomplete::Told(STOPPED.into()));
        }
    }
    Ok(at)
}

/// Where bytes go.
struct Sink<'s> {
    writing: &'s Writing,
    hash: &'s mut Sha256,
    at: &'s mut u64,
}

async fn fetch_rest(
    sink: &mut Sink<'_>,
    origin: &Origin,
    expected: Option<u64>,
    name: &str,
    meter: &mut Option<Meter>,
    stop: &AbortSignal,
) -> Result<(), Incomplete> {
    let mut incoming = Incoming::open(origin, *sink.at, stop).await.map_err(Incomplete::Told)?;
    if incoming.from != *sink.at {
        // The server sends no ranges: from the beginning, then.
        sink.writing.truncate(0)?;
        *sink.hash = Sha256::new();
        *sink.at = 0;
    }
    if let (Some(told), Some(bytes)) = (incoming.total, expected)
        && told != bytes
    {
        incoming.cancel();
        return Err(Incomplete::Told(format!("{name} has {told} bytes there, and {bytes} are expected")));
    }
    let total = incoming.total.or(expected);
    let meter =
        meter.get_or_insert_with(|| Meter::begin(Stage::Download, Some(name.into()), *sink.at, total));
    let mut unflushed = 0;
    while let Some(bytes) = incoming.next().await.map_err(Incomplete::Told)? {
        if expected.is_some_and(|most| *sink.at + u64::from(bytes.length()) > most) {
            incoming.cancel();
            return Err(Incomplete::Damaged(format!("{name} is longer than expected")));
        }
        sink.hash.update(bytes.to_vec());
        if let Err(error) = sink.writing.write(*sink.at, &bytes) {
            incoming.cancel();
            return Err(error.into());
        }
        *sink.at += u64::from(bytes.length());
        unflushed += u64::from(bytes.length());
        if unflushed >= FLUSH_BYTES {
            sink.writing.flush()?;
            unflushed = 0;
        }
        meter.set(*sink.at);
        if stop.aborted() {
            incoming.cancel();
            return Err(Incomplete::Told(STOPPED.into()));
        }
    }
    Ok(())
}

/// A file that the browser holds for this tab alone: there is no room for it in the store. A dropped file needs no copy.
async fn in_memory(
    store: Option<&Store>,
    key: &str,
    list: &mut ModelList,
    idx: usize,
    origin: Option<&Origin>,
    stop: &AbortSignal,
) -> Result<Blob, String> {
    let file = &mut list.files[idx];
    let origin =
        origin.ok_or_else(|| format!("{} is not here; drop the file on the page again", file.file))?;
    if let Origin::File(dropped) = origin {
        return Ok(dropped.clone().into());
    }
    let pieces = js_sys::Array::new();
    let (mut hash, mut at) = (Sha256::new(), 0);
    if let Some(store) = store {
        // What came before the room ran out goes on from there, and makes room.
        if let Some(part) = store.file(key, &file.file).await {
            let bytes = JsFuture::from(part.array_buffer()).await;
            let bytes = js_sys::Uint8Array::new(&bytes.map_err(|error| crate::browser::words(&error))?);
            hash.update(bytes.to_vec());
            at = u64::from(bytes.length());
            pieces.push(&bytes);
        }
        not_kept(&file.file, file.bytes).await;
        // If it stays, it only takes room.
        let _ = store.delete(key).await;
    }
    let mut incoming = Incoming::open(origin, at, stop).await?;
    if incoming.from != at {
        (hash, at) = (Sha256::new(), 0);
        pieces.set_length(0);
    }
    let total = incoming.total.or(Some(file.bytes).filter(|bytes| *bytes > 0));
    let mut meter = Meter::begin(Stage::Download, Some(file.file.clone()), at, total);
    while let Some(bytes) = incoming.next().await? {
        hash.update(bytes.to_vec());
        at += u64::from(bytes.length());
        pieces.push(&bytes);
        meter.set(at);
        if stop.aborted() {
            incoming.cancel();
            return Err(STOPPED.into());
        }
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if let Some(expected) = file.sha256.as_ref().filter(|expected| **expected != found) {
        return Err(format!(
            "{} came damaged: its SHA-256 is {found}, and {expected} is expected; try again",
            file.file
        ));
    }
    file.sha256 = Some(found);
    file.bytes = at;
    Blob::new_with_buffer_source_sequence(&pieces).map_err(|error| crate::browser::words(&error))
}
