//! Weights from a file.
//!
//! Reads only the range it is asked for; a file that became shorter meanwhile is an error, never a panic.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use firstlight_engine::error::LoadError;
use firstlight_engine::model::WeightSource;

/// Ranged reads of one local file.
#[derive(Debug)]
pub struct FileSource {
    name: String,
    file: File,
    len: u64,
}

impl FileSource {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`LoadError::Read`] when it is missing, a folder, or not readable.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        let failed = |reason: String| LoadError::Read { name: name.clone(), reason };
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !metadata.is_file() {
            return Err(failed("it is not a file".into()));
        }
        Ok(Self { len: metadata.len(), name, file })
    }

    fn read_at(&self, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = vec![0; len];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl WeightSource for FileSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        self.read_at(offset, len).map_err(|error| LoadError::Read {
            name: self.name.clone(),
            reason: format!("{len} bytes at {offset}: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &FileSource, offset: u64, len: usize, expected: Option<&[u8]>) {
        let got = pollster::block_on(source.read(offset, len)).ok();
        assert_eq!(got.as_deref(), expected, "{len} bytes at {offset}");
    }

    #[test]
    fn a_range_is_read_exactly_or_not_at_all() {
        let path = std::env::temp_dir().join(format!("firstlight-source-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let source = FileSource::open(&path).unwrap();
        assert_eq!(source.len(), 10);
        check(&source, 3, 4, Some(b"3456"));
        check(&source, 0, 10, Some(b"0123456789"));
        check(&source, 10, 0, Some(b""));
        check(&source, 8, 3, None);
        check(&source, u64::MAX, 1, None);
        std::fs::remove_file(&path).unwrap();
        assert!(FileSource::open(&path).is_err());
        assert!(FileSource::open(&std::env::temp_dir()).is_err());
    }
}
