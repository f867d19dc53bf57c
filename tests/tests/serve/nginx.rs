//! nginx with the configuration that is shipped, on ports of its own.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::server::wait_until;
use crate::cli::{Scratch, binary};

/// What is shipped.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../native/deploy/nginx.conf");
/// The addresses that stand in it: where nginx listens, and the replicas.
const LISTEN: &str = "127.0.0.1:8080";
const REPLICAS: [&str; 2] = ["127.0.0.1:8081", "127.0.0.1:8082"];

/// A running nginx, ended when it is dropped.
pub struct Nginx {
    child: Child,
    /// Where it listens.
    pub address: String,
    _folder: Scratch,
}

/// The system's nginx, or the one that the set-up unpacked beside the build.
fn program() -> PathBuf {
    let unpacked = binary().parent().map(|folder| folder.join("nginx/usr/sbin/nginx"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("nginx"));
    let found =
        installed.chain([PathBuf::from("/usr/sbin/nginx")]).chain(unpacked).find(|path| path.is_file());
    found.expect("nginx is missing: run `cargo xtask setup` (`cargo xtask test` does)")
}

impl Nginx {
    /// Starts it before two replicas. `change` may put something else in place of the shipped lines.
    pub fn start(replicas: [&str; 2], change: impl Fn(String) -> String) -> Self {
        let folder = Scratch::new();
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("there is a free port").to_string();
        let mut shipped = std::fs::read_to_string(SHIPPED).expect("the configuration is there");
        for (written, real) in
            [LISTEN, REPLICAS[0], REPLICAS[1]].into_iter().zip([address.as_str(), replicas[0], replicas[1]])
        {
            assert!(shipped.contains(written), "{written} stands in the configuration");
            // The addresses that are put in hold none of those that are still to be replaced: those are no free ports.
            shipped = shipped.replace(written, real);
        }
        let site = folder.join("firstlight.conf");
        std::fs::write(&site, change(shipped)).expect("the temporary folder is writable");
        let main = folder.join("nginx.conf");
        std::fs::write(&main, main_conf(&folder.path, &site)).expect("the temporary folder is writable");
        let mut command = Command::new(program());
        command.arg("-p").arg(&folder.path).arg("-c").arg(&main).args(["-e", "stderr"]);
        let child = command.stdin(Stdio::null()).spawn().expect("nginx starts");
        let nginx = Self { child, address, _folder: folder };
        wait_until("nginx listens", || TcpStream::connect(&nginx.address).is_ok());
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The workers would outlive a master that is killed.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// What a distribution has around the shipped part, with every file in `folder`.
fn main_conf(folder: &Path, site: &Path) -> String {
    let (folder, site) = (folder.display(), site.display());
    format!(
        "daemon off;
pid {folder}/nginx.pid;
worker_processes 2;
error_log stderr crit;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {site};
}}
"
    )
}
