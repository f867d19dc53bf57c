//! A folder for what is made on the way and wanted by nobody afterwards.
//!
//! Never holds anything that must stay. Invariant: it is empty when it is made, and gone when it is dropped.

use std::path::{Path, PathBuf};

/// The folder.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes it at `path`, in the place of what a process that died there left behind.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(path: PathBuf) -> std::io::Result<Self> {
        if path.exists() {
            let _ = std::fs::remove_dir_all(&path);
        }
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by whoever makes it next, or lies among the system's temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_empty_when_it_is_made_and_gone_when_it_is_dropped() {
        let path = std::env::temp_dir().join(format!("firstlight-scratch-{}", std::process::id()));
        std::fs::create_dir_all(path.join("left behind")).unwrap();
        let scratch = Scratch::new(path.clone()).unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        std::fs::write(path.join("file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
