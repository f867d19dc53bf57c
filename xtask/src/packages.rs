//! The system's package manager: what a thing is called there, and how it is installed.
//!
//! Names what it installs before it installs it. Without the rights to install, the answer is the command to type.

use std::process::{Command, Stdio};

use crate::command::{capture, exists, say};

/// Things we may have to bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Thing {
    /// The Vulkan loader and Mesa's CPU driver.
    Lavapipe,
    /// Python with pip.
    Pip,
    /// What the tests of the server's clients need: Python that can make environments of its own, and curl.
    Clients,
    /// A browser with WebGPU.
    Browser,
    /// Node and its package manager.
    Node,
    /// The proxy; on Debian only what it is linked with, because its package there starts a service (see `nginx`).
    Nginx,
    /// A C++ compiler, to build other engines.
    Compiler,
    /// What Vulkan programs are compiled with: glslc and headers.
    VulkanBuild,
}

impl Thing {
    fn title(self) -> &'static str {
        match self {
            Self::Lavapipe => "Mesa's lavapipe (a Vulkan driver that runs on the CPU) and the Vulkan loader",
            Self::Pip => "Python's pip",
            Self::Clients => "Python's venv and curl",
            Self::Browser => "Chromium (for the tests of the page)",
            Self::Node => "Node and npm (to drive the browser)",
            Self::Nginx => "nginx (a proxy, for the tests)",
            Self::Compiler => "a C++ compiler (to build other engines)",
            Self::VulkanBuild => "glslc and the headers of Vulkan and SPIR-V (to build other engines)",
        }
    }
}

/// A package manager that we know how to call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manager {
    /// Debian, Ubuntu.
    Apt,
    /// Fedora, RHEL.
    Dnf,
    /// Arch.
    Pacman,
    /// openSUSE.
    Zypper,
    /// Alpine.
    Apk,
}

impl Manager {
    const ALL: [(Self, &str); 5] = [
        (Self::Apt, "apt-get"),
        (Self::Dnf, "dnf"),
        (Self::Pacman, "pacman"),
        (Self::Zypper, "zypper"),
        (Self::Apk, "apk"),
    ];

    /// The first one that is on this machine.
    pub fn find() -> Option<Self> {
        Self::ALL.into_iter().find(|(_, program)| exists(program)).map(|(manager, _)| manager)
    }

    /// The commands that install `thing`, in order.
    pub fn commands(self, thing: Thing) -> Vec<String> {
        let names = match (self, thing) {
            (Self::Apt, Thing::Lavapipe) => "mesa-vulkan-drivers libvulkan1",
            (Self::Dnf, Thing::Lavapipe) => "mesa-vulkan-drivers vulkan-loader",
            (Self::Pacman, Thing::Lavapipe) => "vulkan-swrast vulkan-icd-loader",
            (Self::Zypper, Thing::Lavapipe) => "libvulkan_lvp libvulkan1",
            (Self::Apk, Thing::Lavapipe) => "mesa-vulkan-swrast vulkan-loader",
            (Self::Pacman, Thing::Pip) => "python-pip",
            (Self::Apk, Thing::Pip) => "py3-pip",
            (Self::Apt | Self::Dnf | Self::Zypper, Thing::Pip) => "python3-pip",
            (Self::Apt, Thing::Clients) => "python3-venv curl",
            (Self::Pacman, Thing::Clients) => "python curl",
            (Self::Dnf | Self::Zypper | Self::Apk, Thing::Clients) => "python3 curl",
            (_, Thing::Browser) => "chromium",
            (Self::Zypper, Thing::Node) => "nodejs-default npm-default",
            (_, Thing::Node) => "nodejs npm",
            (Self::Dnf | Self::Zypper, Thing::Compiler) => "gcc-c++",
            (Self::Pacman, Thing::Compiler) => "gcc",
            (Self::Apt | Self::Apk, Thing::Compiler) => "g++",
            (Self::Apt, Thing::VulkanBuild) => "glslc libvulkan-dev spirv-headers",
            (Self::Dnf, Thing::VulkanBuild) => "glslc vulkan-loader-devel spirv-headers-devel",
            (Self::Pacman, Thing::VulkanBuild) => "shaderc vulkan-headers vulkan-icd-loader spirv-headers",
            (Self::Zypper, Thing::VulkanBuild) => "shaderc vulkan-devel spirv-headers",
            (Self::Apk, Thing::VulkanBuild) => "shaderc vulkan-headers vulkan-loader-dev spirv-headers",
            (Self::Apt, Thing::Nginx) => "libpcre2-8-0 libssl3 zlib1g",
            (Self::Dnf | Self::Pacman | Self::Zypper | Self::Apk, Thing::Nginx) => "nginx",
        };
        match self {
            Self::Apt => {
                vec!["apt-get update".into(), format!("apt-get install -y --no-install-recommends {names}")]
            }
            Self::Dnf => vec![format!("dnf install -y {names}")],
            Self::Pacman => vec![format!("pacman -Sy --noconfirm {names}")],
            Self::Zypper => vec![format!("zypper --non-interactive install {names}")],
            Self::Apk => vec![format!("apk add {names}")],
        }
    }
}

/// Installs `thing`, as root or through a `sudo` that asks for no password.
pub fn install(thing: Thing) -> Result<(), String> {
    let title = thing.title();
    let Some(manager) = Manager::find() else {
        return Err(format!(
            "this machine lacks {title} and none of apt-get, dnf, pacman, zypper and apk; install it by hand and run the same command again"
        ));
    };
    let commands = manager.commands(thing);
    let by_hand = format!("sudo sh -c '{}'", commands.join(" && "));
    let prefix: &[&str] = match rights() {
        Rights::Root => &[],
        Rights::Sudo => &["sudo", "-n"],
        Rights::None => {
            return Err(format!(
                "this machine lacks {title}; install it with `{by_hand}` and run the same command again"
            ));
        }
    };
    say(&format!("installing {title}: {}", commands.join(" && ")));
    for text in &commands {
        let mut words = prefix.iter().copied().chain(text.split(' '));
        let Some(program) = words.next() else { continue };
        let mut command = Command::new(program);
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        // An index that is only partly refreshed is often good enough; the installation itself decides.
        if let Err(reason) = capture(&mut command)
            && !text.ends_with("update")
        {
            return Err(format!(
                "{title} could not be installed ({reason}); run `{by_hand}` where the network can be reached"
            ));
        }
    }
    Ok(())
}

enum Rights {
    Root,
    Sudo,
    None,
}

fn rights() -> Rights {
    let root = capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if root {
        return Rights::Root;
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).stdin(Stdio::null());
    match capture(&mut sudo) {
        Ok(_) => Rights::Sudo,
        Err(_) => Rights::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(manager: Manager, thing: Thing, expected: &str) {
        assert_eq!(manager.commands(thing).join(" && "), expected);
    }

    #[test]
    fn each_package_manager_has_its_own_names() {
        check(
            Manager::Apt,
            Thing::Lavapipe,
            "apt-get update && apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1",
        );
        check(Manager::Dnf, Thing::Lavapipe, "dnf install -y mesa-vulkan-drivers vulkan-loader");
        check(Manager::Pacman, Thing::Lavapipe, "pacman -Sy --noconfirm vulkan-swrast vulkan-icd-loader");
        check(Manager::Zypper, Thing::Lavapipe, "zypper --non-interactive install libvulkan_lvp libvulkan1");
        check(Manager::Apk, Thing::Lavapipe, "apk add mesa-vulkan-swrast vulkan-loader");
        check(Manager::Apk, Thing::Pip, "apk add py3-pip");
        check(Manager::Dnf, Thing::Browser, "dnf install -y chromium");
        check(Manager::Pacman, Thing::Node, "pacman -Sy --noconfirm nodejs npm");
        check(Manager::Dnf, Thing::Nginx, "dnf install -y nginx");
        check(Manager::Zypper, Thing::Compiler, "zypper --non-interactive install gcc-c++");
        check(
            Manager::Dnf,
            Thing::VulkanBuild,
            "dnf install -y glslc vulkan-loader-devel spirv-headers-devel",
        );
        check(
            Manager::Apt,
            Thing::Nginx,
            "apt-get update && apt-get install -y --no-install-recommends libpcre2-8-0 libssl3 zlib1g",
        );
    }
}
