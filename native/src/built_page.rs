//! The page's files, as the build put them into this program.
//!
//! Nothing is read from a disk. Invariant: either all of the page is here, or nothing of it.

/// One file of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Below the page's address: `index.html`, or `page/NAME-HASH.ENDING`.
    pub path: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
    /// The same for clients that take gzip.
    pub gzipped: Option<&'static [u8]>,
}

/// What the build found in `web/dist`; nothing where no page was made before.
pub const FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

/// The document that names the others.
pub const INDEX: &str = "index.html";

/// The page in one document, without figures; `None` where no page was made before.
pub fn report_template() -> Option<&'static str> {
    let is_template =
        |file: &&PageFile| file.path.starts_with("page/report-") && file.path.ends_with(".html");
    std::str::from_utf8(FILES.iter().find(is_template)?.bytes).ok()
}
