//! nginx, the proxy that the tests put in front of two replicas.
//!
//! Never starts a service: Debian's package would listen on port 80 from its installation on and after every boot, so there
//! the program is only unpacked beside the build. Other distributions leave starting to people.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, exists, say};
use crate::packages::{self, Manager, Thing};
use crate::workspace::Workspace;

/// The packages that hold the program, by release: Debian 12 and later, Ubuntu, Debian 11.
const DEBIAN_NAMES: [&str; 3] = ["nginx", "nginx-core", "nginx-light"];

/// Brings nginx where a Linux machine has none. Elsewhere the tests do without.
pub fn ensure(workspace: &Workspace) -> Result<(), String> {
    let folder = workspace.profile_folder.join("nginx");
    let unpacked = folder.join("usr/sbin/nginx");
    if !cfg!(target_os = "linux") || exists("nginx") || exists("/usr/sbin/nginx") || runs(&unpacked) {
        return Ok(());
    }
    if Manager::find() != Some(Manager::Apt) {
        return packages::install(Thing::Nginx);
    }
    say(
        "unpacking Debian's nginx beside the build (nothing is installed, no service is started): apt-get download nginx",
    );
    let found = unpack(&folder);
    if found.is_ok() && runs(&unpacked) {
        return Ok(());
    }
    // The lists of packages may be old or absent, and so may be what the program is linked with.
    packages::install(Thing::Nginx)?;
    unpack(&folder)?;
    match runs(&unpacked) {
        true => Ok(()),
        false => Err(format!(
            "{} does not run here; install nginx by hand and run the same command again",
            unpacked.display()
        )),
    }
}

/// It is there, and finds what it is linked with.
fn runs(program: &Path) -> bool {
    program.is_file() && capture(Command::new(program).arg("-v")).is_ok()
}

/// Takes the program out of whichever package has it.
fn unpack(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    let mut reason = String::new();
    for name in DEBIAN_NAMES {
        let mut apt = Command::new("apt-get");
        apt.args(["-o", "APT::Sandbox::User=root", "download", name]).current_dir(folder).env("LC_ALL", "C");
        if let Err(why) = capture(&mut apt) {
            reason = why;
            continue;
        }
        for archive in archives(folder) {
            capture(Command::new("dpkg-deb").arg("-x").args([&archive, &folder.to_path_buf()]))?;
            // One that is left would be taken for the next package's.
            let _ = std::fs::remove_file(&archive);
        }
        if folder.join("usr/sbin/nginx").is_file() {
            return Ok(());
        }
    }
    Err(format!(
        "Debian's nginx could not be brought ({reason}); install nginx, or run this where the network can be reached"
    ))
}

fn archives(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "deb")).collect()
}
