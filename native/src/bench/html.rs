//! The result as one document that opens anywhere: the page that is built into this program, with the result in it.
//!
//! It draws nothing: the page does. Invariant: that it cannot be written is told before the measurement.

use std::path::Path;

use firstlight_engine::report::document;
use serde::Serialize;

use super::{as_json, check_writable, put};
use crate::built_page::report_template;
use crate::failure::Failure;
use crate::terminal::note;

const FLAG: &str = "--html";

/// Where the document goes.
pub struct HtmlFile<'p> {
    path: &'p Path,
    template: &'static str,
}

impl<'p> HtmlFile<'p> {
    /// At a path that can be written.
    ///
    /// # Errors
    /// It cannot be written, or this program was built without a page.
    pub fn at(path: &'p Path) -> Result<Self, Failure> {
        let template = report_template().ok_or_else(|| {
            Failure::usage(
                "--html needs the page, and this program was built without one: run `cargo xtask page` and build again",
            )
        })?;
        check_writable(path, FLAG)?;
        Ok(Self { path, template })
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file cannot be written any more.
    pub fn write(&self, result: &impl Serialize) -> Result<(), Failure> {
        let html = document(self.template, &as_json(result)?)
            .ok_or_else(|| Failure::failed("the page has no place for figures; report this defect"))?;
        put(self.path, &html, FLAG)?;
        note(&format!("the report is in {}: open it in a browser", self.path.display()));
        Ok(())
    }
}
