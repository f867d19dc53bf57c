//! The standard library for wasm32-unknown-unknown: present, or from rustup, or built from the distribution's source.
//!
//! Never touches the compiler or the project's own flags: afterwards plain cargo works, on stable.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, say};

/// The target of the browser build.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// Debian's suite that carries `rust-src` for compilers newer than its release.
const SUITE: &str = "trixie-backports";

/// Makes `cargo build --target wasm32-unknown-unknown` work.
pub fn ensure() -> Result<(), String> {
    let sysroot = capture(Command::new("rustc").args(["--print", "sysroot"]))?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib");
    if present(&folder) {
        return Ok(());
    }
    say(&format!("installing the standard library for {TARGET}: rustup target add {TARGET}"));
    let by_rustup = capture(Command::new("rustup").args(["target", "add", TARGET]));
    if present(&folder) {
        return Ok(());
    }
    let reason = by_rustup.err().unwrap_or_else(|| "rustup added it to another toolchain".into());
    build_from_distribution(&folder).map_err(|second| {
        format!("the standard library for {TARGET} is missing and rustup could not bring it ({reason}; {second}); run `rustup target add {TARGET}` where the network can be reached")
    })
}

fn present(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })
}

/// Builds std from the `rust-src` package of the very same version (another one would not link) and copies it into
/// the sysroot.
fn build_from_distribution(folder: &Path) -> Result<(), String> {
    let mirror = apt_mirror().ok_or("and this system has no apt mirror to take rust-src from")?;
    let version = compiler_version()?;
    let scratch = Scratch::new()?;
    say(&format!("building the standard library for {TARGET} once, from rust-src {version} of {SUITE}"));
    let apt = Apt::new(&scratch.path, &mirror)?;
    apt.run("apt-get", &["update"])?;
    let listing = apt.run("apt-cache", &["madison", "rust-src"])?;
    let package = source_package(&listing, &version)
        .ok_or_else(|| format!("{SUITE} has no rust-src for rustc {version}"))?;
    apt.run("apt-get", &["download", &format!("rust-src={package}")])?;
    let archive = scratch.path.join("library.tar");
    let deb = names_ending(&scratch.path, ".deb").pop().ok_or("apt-get downloaded no package")?;
    capture(Command::new("sh").current_dir(&scratch.path).args([
        "-c",
        "dpkg --fsys-tarfile \"$0\" >\"$1\" && tar -xf \"$1\" \"./usr/src/rustc-$2/library\"",
        &deb.to_string_lossy(),
        &archive.to_string_lossy(),
        &version,
    ]))?;
    let manifest = scratch.path.join(format!("usr/src/rustc-{version}/library/sysroot/Cargo.toml"));
    let target = scratch.path.join("target");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--locked", "--release", "--target", TARGET, "--manifest-path"])
        .arg(&manifest)
        .current_dir(&scratch.path)
        .env_remove("CARGO_BUILD_TARGET")
        // The sysroot's crates use unstable features, and must carry the marks that rustc expects of its own library.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_DEFAULT_LIB_METADATA", "stablestd")
        .env("RUSTFLAGS", "-Zforce-unstable-if-unmarked -Cembed-bitcode=yes")
        .env("CARGO_TARGET_DIR", &target);
    capture(&mut cargo)?;
    let built = names_ending(&target.join(TARGET).join("release/deps"), ".rlib");
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    for file in &built {
        let Some(name) = file.file_name() else { continue };
        let to = folder.join(name);
        std::fs::copy(file, &to).map_err(|error| format!("{} cannot be written: {error}", to.display()))?;
    }
    match present(folder) {
        true => Ok(()),
        false => Err("the build made no libstd".into()),
    }
}

/// apt with lists and cache of its own, so that the machine's configuration stays as it is.
struct Apt<'a> {
    folder: &'a Path,
}

impl<'a> Apt<'a> {
    fn new(folder: &'a Path, mirror: &str) -> Result<Self, String> {
        let sources =
            format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {SUITE} main\n");
        for sub in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(folder.join(sub)).map_err(|error| error.to_string())?;
        }
        std::fs::write(folder.join("sources.list"), sources).map_err(|error| error.to_string())?;
        Ok(Self { folder })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let at = |key: &str, name: &str| format!("{key}={}", self.folder.join(name).display());
        let options = [
            at("Dir::Etc::sourcelist", "sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            at("Dir::State::Lists", "lists"),
            at("Dir::Cache", "cache"),
            "APT::Sandbox::User=root".into(),
        ];
        let mut command = Command::new(program);
        command.arg("-qq").current_dir(self.folder).env("LC_ALL", "C");
        for option in &options {
            command.args(["-o", option]);
        }
        capture(command.args(arguments))
    }
}

/// The machine's own mirror: the first one in its apt configuration that is not for security updates only.
fn apt_mirror() -> Option<String> {
    let mut files = names_ending(Path::new("/etc/apt/sources.list.d"), ".sources");
    files.push("/etc/apt/sources.list".into());
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).find_map(|text| mirror_in(&text))
}

/// Reads both of apt's formats; only an entry of Debian's own suites (signed by its keyring or of component `main`) counts.
fn mirror_in(text: &str) -> Option<String> {
    text.split("\n\n").find_map(|paragraph| {
        let mut found = None;
        let mut of_debian = false;
        for line in paragraph.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            of_debian |= line.contains("debian") && (line.contains("URIs:") || line.starts_with("deb "));
            let fields = || line.split_whitespace();
            if line.starts_with("URIs:") || line.starts_with("deb ") {
                found = found.or(fields().find(|word| word.contains("://") && !word.contains("security")));
            }
        }
        found.filter(|_| of_debian).map(str::to_owned)
    })
}

fn compiler_version() -> Result<String, String> {
    let text = capture(Command::new("rustc").arg("--version"))?;
    text.split_whitespace().nth(1).map(str::to_owned).ok_or_else(|| "rustc tells no version".into())
}

/// The package version of `rust-src` in `apt-cache madison`'s table that belongs to this compiler.
fn source_package(listing: &str, version: &str) -> Option<String> {
    let versions = listing.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    versions.into_iter().find(|found| found.starts_with(&format!("{version}+"))).map(str::to_owned)
}

fn names_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    found.sort();
    found
}

/// A folder that is gone afterwards.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("firstlight-std-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is the system's to clean: it lies among its temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(mirror_in(text).as_deref(), expected, "{text:?}");
    }

    #[test]
    fn the_mirror_is_read_from_either_format_and_security_is_passed_over() {
        check(
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n",
            Some("http://mirror.example/debian"),
        );
        check(
            "Types: deb\nURIs: http://a.example/debian-security\n\nTypes: deb\nURIs: http://a.example/debian\n",
            Some("http://a.example/debian"),
        );
        check("deb [arch=amd64] https://b.example/debian bookworm main\n", Some("https://b.example/debian"));
        check("# deb https://b.example/debian bookworm main\n", None);
        check("deb https://c.example/other stable main\n", None);
    }

    #[test]
    fn the_source_must_be_of_the_compilers_version() {
        let listing = "rust-src | 1.95.1+dfsg1-1 | x\n rust-src | 1.95.0+dfsg1-1~bpo13+1 | x\n";
        assert_eq!(source_package(listing, "1.95.0").as_deref(), Some("1.95.0+dfsg1-1~bpo13+1"));
        assert_eq!(source_package(listing, "1.9"), None);
    }
}
