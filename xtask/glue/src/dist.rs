//! The folder of the page on disk: swapped as a whole, and a model beside the page where one is wanted.
//!
//! Invariant: there is never a folder with half of a page in it under the page's name.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Says which models lie beside the page; the page asks for it.
const MODELS: &str = "models.json";
/// What the folder itself is in the checkout for: it is there and everything in it is ignored.
const KEPT: &str = ".gitignore";

/// A model to lie beside the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// What to call it.
    pub name: String,
    /// Where it is.
    pub file: PathBuf,
}

fn failed(verb: &str, path: &Path) -> impl Fn(io::Error) -> String {
    let path = path.display().to_string();
    let verb = verb.to_owned();
    move |error| {
        format!("{path} cannot be {verb}: {error}; see that the disk has room and the folder is yours")
    }
}

/// Puts `files`, and `model` if there is one, where `dist` is; tells whether anything had changed.
///
/// # Errors
/// A file cannot be read or written; then `dist` is as it was.
pub fn put(dist: &Path, files: &[(String, Vec<u8>)], model: Option<&Model>) -> Result<bool, String> {
    let model_bytes = match model {
        Some(Model { file, .. }) => Some(file.metadata().map_err(failed("read", file))?.len()),
        None => None,
    };
    if is_there(dist, files, model.zip(model_bytes)) {
        return Ok(false);
    }
    let (new, old) = (beside(dist, "new"), beside(dist, "old"));
    for left in [&new, &old] {
        // Of a run that was interrupted.
        let _ = std::fs::remove_dir_all(left);
    }
    for (name, bytes) in files {
        write(&new.join(name), bytes)?;
    }
    if let Ok(kept) = std::fs::read(dist.join(KEPT)) {
        write(&new.join(KEPT), &kept)?;
    }
    if let Some(model) = model {
        copy_model(&new, model)?;
    }
    if dist.exists() {
        std::fs::rename(dist, &old).map_err(failed("replaced", dist))?;
    }
    std::fs::rename(&new, dist).map_err(|error| {
        // The one from before is better than none.
        let _ = std::fs::rename(&old, dist);
        failed("put in its place", &new)(error)
    })?;
    let _ = std::fs::remove_dir_all(&old);
    Ok(true)
}

fn beside(dist: &Path, ending: &str) -> PathBuf {
    let mut name = dist.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{ending}"));
    dist.with_file_name(name)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed("made", folder))?;
    }
    std::fs::write(path, bytes).map_err(failed("written", path))
}

/// Whether exactly this lies there already. A model's bytes are not read again: its name and length have to do.
fn is_there(dist: &Path, files: &[(String, Vec<u8>)], model: Option<(&Model, u64)>) -> bool {
    let same =
        |(name, bytes): &(String, Vec<u8>)| std::fs::read(dist.join(name)).is_ok_and(|old| old == *bytes);
    let model_same = match model {
        None => !dist.join(MODELS).exists(),
        Some((model, bytes)) => {
            let copy = model.file.file_name().map(|name| dist.join(name));
            dist.join(MODELS).exists()
                && copy.is_some_and(|copy| copy.metadata().is_ok_and(|m| m.len() == bytes))
        }
    };
    let in_page = std::fs::read_dir(dist.join("page")).map_or(0, Iterator::count);
    let wanted = files.iter().filter(|(name, _)| name.starts_with("page/")).count();
    model_same && in_page == wanted && files.iter().all(same)
}

/// Copies the model and says so in the list that the page asks for.
fn copy_model(folder: &Path, model: &Model) -> Result<(), String> {
    let name = model.file.file_name().ok_or("a model's file has a name")?;
    let mut from = File::open(&model.file).map_err(failed("read", &model.file))?;
    let target = folder.join(name);
    let mut to = File::create(&target).map_err(failed("written", &target))?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0; 1 << 20]);
    loop {
        let read = from.read(&mut buffer).map_err(failed("read", &model.file))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        to.write_all(&buffer[..read]).map_err(failed("written", &target))?;
        bytes += read as u64;
    }
    let sha256: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let list = models_json(&model.name, &name.to_string_lossy(), bytes, &sha256);
    write(&folder.join(MODELS), list.as_bytes())
}

fn models_json(name: &str, file: &str, bytes: u64, sha256: &str) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    format!(
        "{{\"models\":[{{\"name\":{},\"file\":{},\"bytes\":{bytes},\"sha256\":\"{sha256}\"}}]}}\n",
        quoted(name),
        quoted(file)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_folder_is_replaced_as_a_whole_and_left_alone_where_nothing_changed() {
        let scratch = std::env::temp_dir().join(format!("firstlight-dist-{}", std::process::id()));
        let dist = scratch.join("dist");
        std::fs::create_dir_all(&dist).unwrap();
        std::fs::write(dist.join(KEPT), "*\n").unwrap();
        let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let one = [file("index.html", "1"), file("page/a-1.js", "a")];
        assert_eq!(put(&dist, &one, None), Ok(true));
        assert_eq!(put(&dist, &one, None), Ok(false));
        let two = [file("index.html", "2"), file("page/a-2.js", "b")];
        assert_eq!(put(&dist, &two, None), Ok(true));
        assert_eq!(
            (names(&dist), names(&dist.join("page"))),
            (vec![KEPT.into(), "index.html".into(), "page".into()], vec!["a-2.js".into()])
        );
        let model = Model { name: "small".into(), file: scratch.join("m.gguf") };
        assert!(put(&dist, &two, Some(&model)).unwrap_err().contains("m.gguf"), "it is not there yet");
        std::fs::write(&model.file, "abc").unwrap();
        assert_eq!(put(&dist, &two, Some(&model)), Ok(true));
        assert_eq!(put(&dist, &two, Some(&model)), Ok(false));
        let list = std::fs::read_to_string(dist.join(MODELS)).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            list,
            format!(
                "{{\"models\":[{{\"name\":\"small\",\"file\":\"m.gguf\",\"bytes\":3,\"sha256\":\"{sha256}\"}}]}}\n"
            )
        );
        assert_eq!(put(&dist, &two, None), Ok(true), "a model that is not wanted goes");
        assert!(!dist.join(MODELS).exists());
        assert_eq!(names(&scratch), ["dist", "m.gguf"], "nothing is left beside it");
        let _ = std::fs::remove_dir_all(&scratch);
    }
}
