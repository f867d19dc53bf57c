//! The page's files: names that carry the hash of what is in them, and one document that names them.
//!
//! Every path is relative, so that the page works under any address. Invariant: a name changes when the content does, so
//! that a browser may keep a file of that name for ever.

use std::fmt;
use std::num::NonZeroU64;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};
use wasm_bindgen_cli_support::Bindgen;
use zopfli::{Format, Options};

use crate::Sources;

/// Of the search for the shortest form: more of them find next to nothing.
const ITERATIONS: NonZeroU64 = NonZeroU64::MIN.saturating_add(2);
/// The most bytes that the compiled module may have when gzipped: what a visitor waits for.
const MAX_GZIPPED: usize = 1_500_000;
/// The folder of the files that never change.
const FOLDER: &str = "page";
/// Where a document names its styles.
const STYLES: &str = "<!-- styles -->";
/// Where a report has what starts it.
const PROGRAM: &str = "<!-- program -->";
/// Where that has the files that it loads.
const PACKED: &str = "/* packed */";
/// Where a report has what it is about, once somebody has written it.
const FIGURES: &str = "<!-- figures -->";

/// What wasm-bindgen makes of a compiled module.
pub struct Module {
    pub wasm: Vec<u8>,
    /// Loads it.
    pub script: String,
}

/// All files but models, with their paths below the page's folder.
pub struct Page {
    pub files: Vec<(String, Vec<u8>)>,
    pub sizes: Sizes,
}

/// What has to come before the page can begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    wasm: usize,
    gzipped: usize,
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        write!(f, "wasm {:.2} MB, gzipped {:.3} MB of at most ", mb(self.wasm), mb(self.gzipped))?;
        write!(f, "{:.2}", mb(MAX_GZIPPED))
    }
}

/// Makes a module that browsers load of what the compiler made.
pub fn bind(wasm: &Path) -> Result<Module, String> {
    let failed = |error: &dyn fmt::Display| {
        // The first line is the sentence; what follows is about tools that are not used here.
        let sentence = error.to_string().lines().next().unwrap_or_default().to_owned();
        format!("{} cannot be made into a page: {sentence}", wasm.display())
    };
    let mut bindgen = Bindgen::new();
    let bindgen = bindgen.web(true).map_err(|error| failed(&error))?;
    bindgen
        .input_path(wasm)
        .typescript(false)
        .remove_name_section(true)
        .omit_default_module_path(true)
        .out_name("firstlight");
    let mut output = bindgen.generate_output().map_err(|error| failed(&error))?;
    let script = output.js().to_owned();
    // Crates may bring JavaScript of their own; only what the script imports would have to lie beside it.
    if script.contains("./snippets/") || !output.npm_dependencies().is_empty() {
        return Err(failed(&"a crate imports JavaScript files of its own; do without the feature that does"));
    }
    Ok(Module { wasm: output.wasm_mut().emit_wasm(), script })
}

/// Names every file by its content, and puts the names where the files are named.
///
/// # Errors
/// The module is larger than a visitor should wait for, or a source does not name what it must.
pub fn assemble(module: Module, sources: &Sources) -> Result<Page, String> {
    let mut files = Files::default();
    let raw = module.wasm.len();
    let wasm = files.add("firstlight.wasm", module.wasm)?;
    let sizes = Sizes { wasm: raw, gzipped: wasm.gzipped.len() };
    if sizes.gzipped > MAX_GZIPPED {
        return Err(format!("the page is too large: {sizes}; leave a crate out, or a feature of one"));
    }
    let script = files.add("firstlight.js", module.script.into_bytes())?;
    let report = report(sources, &script.gzipped, &wasm.gzipped)?;
    let report = files.add_plain("report.html", report.into_bytes());
    let names = [("firstlight.js", script.name), ("firstlight.wasm", wasm.name)];
    let boot = renamed("boot.js", &sources.boot, &names)?;
    let boot = files.add("boot.js", boot.into_bytes())?.name;
    let icon = files.add("icon.svg", sources.icon.clone().into_bytes())?.name;
    let mut links = Vec::new();
    for (name, text) in &sources.styles {
        let name = files.add(name, text.clone().into_bytes())?.name;
        links.push(format!("<link rel=\"stylesheet\" href=\"{FOLDER}/{name}\">"));
    }
    let [script, wasm] = names;
    let named = [("boot.js", boot), script, wasm, ("icon.svg", icon), ("report.html", report)];
    let below = named.map(|(name, new)| (name, format!("{FOLDER}/{new}")));
    let index = renamed("index.html", &sources.index, &below)?;
    let index = filled("index.html", &index, STYLES, &links.join("\n"))?;
    let mut files = files.0;
    files.push(("index.html".to_owned(), index.into_bytes()));
    Ok(Page { files, sizes })
}

/// The page in one document that needs nothing else: styles as they are, and script and module gzipped, as text.
fn report(sources: &Sources, script: &[u8], wasm: &[u8]) -> Result<String, String> {
    let name = "report.html";
    let styles = sources.styles.iter().map(|(_, text)| format!("<style>\n{text}</style>"));
    let html = filled(name, &sources.report, STYLES, &styles.collect::<Vec<_>>().join("\n"))?;
    let [script, wasm] = [script, wasm].map(|gzipped| BASE64_STANDARD.encode(gzipped));
    let packed = format!("\n\"firstlight.js\":\"{script}\",\n\"firstlight.wasm\":\"{wasm}\"\n");
    let mut program = filled("report.js", &sources.unpack, PACKED, &packed)?;
    program += &sources.boot;
    for (file, kind) in [("firstlight.js", "text/javascript"), ("firstlight.wasm", "application/wasm")] {
        let unpacked = format!("await unpacked(\"{file}\", \"{kind}\")");
        program = filled("boot.js", &program, &format!("\"./{file}\""), &unpacked)?;
    }
    let html = filled(name, &html, PROGRAM, &program)?;
    match html.contains(FIGURES) {
        true => Ok(html),
        false => Err(lacking(name, FIGURES)),
    }
}

/// What has been named so far.
#[derive(Default)]
struct Files(Vec<(String, Vec<u8>)>);

/// A file that has a name.
struct Named {
    name: String,
    gzipped: Vec<u8>,
}

impl Files {
    /// Adds a file, and beside it what a server may send instead to those who take gzip.
    fn add(&mut self, name: &str, bytes: Vec<u8>) -> Result<Named, String> {
        let gzipped = gzip(&bytes)?;
        let name = self.add_plain(name, bytes);
        self.0.push((format!("{FOLDER}/{name}.gz"), gzipped.clone()));
        Ok(Named { name, gzipped })
    }

    /// Adds a file; tells its name.
    fn add_plain(&mut self, name: &str, bytes: Vec<u8>) -> String {
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
        let name = format!("{stem}-{}.{ending}", &sha256(&bytes)[..16]);
        self.0.push((format!("{FOLDER}/{name}"), bytes));
        name
    }
}

fn lacking(file: &str, what: &str) -> String {
    format!("web/{file} must name {what}; put it back")
}

/// `text` with something in a place that must be there.
fn filled(file: &str, text: &str, place: &str, with: &str) -> Result<String, String> {
    let (before, after) = text.split_once(place).ok_or_else(|| lacking(file, place))?;
    Ok([before, with, after].concat())
}

/// `text` with every name replaced, each of which must stand in it.
fn renamed(file: &str, text: &str, names: &[(&str, String)]) -> Result<String, String> {
    let mut out = text.to_owned();
    for (name, new) in names {
        // In quotes it is a whole name.
        let old = format!("./{name}\"");
        if !out.contains(&old) {
            return Err(lacking(file, &old));
        }
        out = out.replace(&old, &format!("./{new}\""));
    }
    Ok(out)
}

/// In hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>, String> {
    // Visitors download more often than we compress: some seconds here are a twentieth less for each of them.
    let options = Options { iteration_count: ITERATIONS, ..Options::default() };
    let mut gzipped = Vec::new();
    let written = zopfli::compress(options, Format::Gzip, bytes, &mut gzipped);
    written.map(|()| gzipped).map_err(|error| format!("{} bytes cannot be gzipped: {error}", bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Sources {
        Sources {
            index: "\"./boot.js\" \"./firstlight.js\" \"./firstlight.wasm\" \"./icon.svg\" \"./report.html\" <!-- styles -->"
                .into(),
            report: "<!-- styles --><!-- program --><a><!-- figures --></a>".into(),
            unpack: "{/* packed */};".into(),
            boot: "\"./firstlight.js\" \"./firstlight.wasm\"".into(),
            styles: vec![("a.css".into(), "a{}".into()), ("b.css".into(), "b{}".into())],
            icon: "<svg/>".into(),
        }
    }

    fn module(wasm: &[u8]) -> Module {
        Module { wasm: wasm.to_vec(), script: "export {}".into() }
    }

    fn text(page: &Page, start: &str, ending: &str) -> (String, String) {
        let is = |(name, _): &&(String, Vec<u8>)| name.starts_with(start) && name.ends_with(ending);
        let (name, bytes) = page.files.iter().find(is).unwrap();
        (name.clone(), String::from_utf8_lossy(bytes).into_owned())
    }

    #[test]
    fn a_changed_file_changes_its_name_and_the_names_of_all_that_name_it() {
        let (one, two) =
            (assemble(module(b"1"), &sources()).unwrap(), assemble(module(b"2"), &sources()).unwrap());
        let check = |start: &str, ending: &str, same: bool| {
            let (a, b) = (text(&one, start, ending), text(&two, start, ending));
            assert_eq!(a.0 == b.0, same, "{a:?} {b:?}");
        };
        check("page/firstlight-", ".wasm", false);
        check("page/firstlight-", ".js", true);
        check("page/boot-", ".js", false);
        check("page/a-", ".css", true);
        check("index.html", "", true);
        let (_, index) = text(&one, "index.html", "");
        for (start, ending) in [
            ("page/boot-", ".js"),
            ("page/firstlight-", ".wasm"),
            ("page/icon-", ".svg"),
            ("page/report-", ".html"),
        ] {
            assert!(index.contains(&text(&one, start, ending).0), "{index}");
        }
        assert!(index.find("page/a-").unwrap() < index.find("page/b-").unwrap(), "in their order: {index}");
    }

    #[test]
    fn a_report_has_all_that_the_page_is_made_of_and_a_place_for_figures() {
        let page = assemble(module(b"1"), &sources()).unwrap();
        let (_, report) = text(&page, "page/report-", ".html");
        let gzipped = BASE64_STANDARD.encode(gzip(b"1").unwrap());
        for part in [&format!("\"firstlight.wasm\":\"{gzipped}\""), "<style>\na{}</style>", FIGURES] {
            assert!(report.contains(part), "{part}: {report}");
        }
        let started =
            r#"await unpacked("firstlight.js", "text/javascript") await unpacked("firstlight.wasm""#;
        assert!(report.contains(started), "{report}");
        for place in [STYLES, PROGRAM, PACKED, "./"] {
            assert!(!report.contains(place), "{place}: {report}");
        }
        let lacking = Sources { report: "<!-- styles --><!-- program -->".into(), ..sources() };
        let sentence = assemble(module(b"1"), &lacking).map(drop).unwrap_err();
        assert!(sentence.contains("web/report.html") && sentence.contains(FIGURES), "{sentence}");
    }

    #[test]
    fn a_source_that_names_not_what_it_must_is_told() {
        let lacking = Sources { boot: "\"./firstlight.js\"".into(), ..sources() };
        let sentence = assemble(module(b"1"), &lacking).map(drop).unwrap_err();
        assert!(sentence.contains("web/boot.js") && sentence.contains("firstlight.wasm"), "{sentence}");
    }

    #[test]
    fn a_module_that_is_too_large_is_refused_with_its_size() {
        // What no compressor makes smaller: a sequence of a generator.
        let mut state = 1_u64;
        let noise = (0..2_000_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let sentence = assemble(module(&noise.collect::<Vec<_>>()), &sources()).map(drop).unwrap_err();
        assert!(sentence.contains("2.000 MB of at most 1.50"), "{sentence}");
        assert!(assemble(module(&[0; 2_000_000]), &sources()).is_ok(), "it is the gzipped size that counts");
    }

    #[test]
    fn what_is_no_module_is_told_in_a_sentence() {
        let file = std::env::temp_dir().join(format!("firstlight-glue-{}.wasm", std::process::id()));
        std::fs::write(&file, "no module").unwrap();
        let sentence = bind(&file).map(drop).unwrap_err();
        let _ = std::fs::remove_file(&file);
        assert!(sentence.contains("cannot be made into a page") && !sentence.contains('\n'), "{sentence}");
    }
}
