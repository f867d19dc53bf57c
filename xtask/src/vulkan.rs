//! A Vulkan loader and something for it to drive. A real GPU is used as it is; on Linux without one, lavapipe is brought.
//!
//! Looks at files only: it loads no driver, so a broken one cannot take the set-up down with it.

use std::path::{Path, PathBuf};

use crate::packages::{self, Thing};

/// What a look at the machine found.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// `libvulkan.so.1` is where the dynamic linker looks.
    loader: bool,
    /// File names of driver manifests.
    manifests: Vec<String>,
    /// There is a device node of a GPU.
    gpu: bool,
}

impl Found {
    /// A CPU driver needs no device; any other needs one.
    fn usable(&self) -> bool {
        let cpu = |name: &String| {
            let name = name.to_lowercase();
            ["lvp", "lavapipe", "swiftshader", "vk_swiftshader"].iter().any(|word| name.contains(word))
        };
        self.loader && (self.manifests.iter().any(cpu) || (self.gpu && !self.manifests.is_empty()))
    }
}

/// Brings lavapipe where a Linux machine has no usable adapter. Windows and macOS bring their own drivers.
pub fn ensure() -> Result<(), String> {
    if !cfg!(target_os = "linux") || look().usable() {
        return Ok(());
    }
    packages::install(Thing::Lavapipe)?;
    match look().usable() {
        true => Ok(()),
        false => Err("the packages are installed and there is still no Vulkan driver; run `cargo run --release -p firstlight -- doctor` to see what the loader finds".into()),
    }
}

/// Whether the machine shows a GPU. Only Linux is looked at: elsewhere there is one as a rule.
pub fn shows_gpu() -> bool {
    !cfg!(target_os = "linux") || look().gpu
}

fn look() -> Found {
    let mut manifests = Vec::new();
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"] {
        let named = std::env::var_os(variable).unwrap_or_default();
        manifests.extend(
            std::env::split_paths(&named).filter(|path| path.is_file()).filter_map(|p| file_name(&p)),
        );
    }
    let only_named = !manifests.is_empty() && std::env::var_os("VK_ADD_DRIVER_FILES").is_none();
    if !only_named {
        for folder in manifest_folders() {
            manifests.extend(names_in(&folder).into_iter().filter(|name| name.ends_with(".json")));
        }
    }
    let render_node = names_in(Path::new("/dev/dri")).iter().any(|name| name.starts_with("renderD"));
    let gpu = render_node || ["/dev/nvidia0", "/dev/dxg"].iter().any(|node| Path::new(node).exists());
    Found { loader: loader_present(), manifests, gpu }
}

/// Where the loader searches for driver manifests on Linux, in its documented order.
fn manifest_folders() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let listed = |variable: &str, default: &str| {
        let value = std::env::var_os(variable).filter(|v| !v.is_empty()).unwrap_or_else(|| default.into());
        std::env::split_paths(&value).collect::<Vec<_>>()
    };
    let mut roots = vec![home.join(".config"), home.join(".local/share")];
    roots.extend(listed("XDG_CONFIG_HOME", ""));
    roots.extend(listed("XDG_CONFIG_DIRS", "/etc/xdg"));
    roots.extend(listed("XDG_DATA_HOME", ""));
    roots.extend(listed("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
    roots.extend(["/usr/local/etc", "/etc", "/usr/local/share", "/usr/share"].map(PathBuf::from));
    roots.into_iter().filter(|root| root.is_absolute()).map(|root| root.join("vulkan/icd.d")).collect()
}

fn loader_present() -> bool {
    let cached = crate::command::capture(std::process::Command::new("ldconfig").arg("-p"))
        .or_else(|_| crate::command::capture(std::process::Command::new("/sbin/ldconfig").arg("-p")));
    if cached.is_ok_and(|list| list.contains("libvulkan.so.1")) {
        return true;
    }
    // musl has no cache to ask, and NixOS and friends put libraries where only the environment knows.
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()).collect();
    folders.extend(["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"].map(PathBuf::from));
    folders.iter().any(|folder| folder.join("libvulkan.so.1").exists())
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| file_name(&entry.path())).collect()
}

fn file_name(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(loader: bool, manifests: &[&str], gpu: bool, expected: bool) {
        let manifests = manifests.iter().map(|name| (*name).to_owned()).collect();
        let found = Found { loader, manifests, gpu };
        assert_eq!(found.usable(), expected, "{found:?}");
    }

    #[test]
    fn a_gpu_needs_loader_manifest_and_device_and_lavapipe_needs_no_device() {
        check(true, &["lvp_icd.x86_64.json"], false, true);
        check(false, &["lvp_icd.x86_64.json"], false, false);
        check(true, &["nvidia_icd.json"], true, true);
        check(true, &["intel_icd.x86_64.json", "radeon_icd.x86_64.json"], false, false);
        check(true, &[], true, false);
    }
}
