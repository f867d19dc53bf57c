//! The server as its clients see it: the real binary with the real model behind a port of its own.
//!
//! Loading costs a second, so a test states many claims about one server. Nothing sleeps: what is waited for is looked at
//! again until it is there, or until it is clear that it never comes.

mod answers;
mod clients;
mod collector;
mod curl;
mod gateway;
mod hostile;
mod life;
mod load;
mod metrics_page;
// The proxy that is set up comes with a Linux distribution.
#[cfg(target_os = "linux")]
mod nginx;
mod openapi;
mod page;
#[cfg(target_os = "linux")]
mod replicas;
mod restart;
mod running;
pub mod server;
pub mod soak;
#[cfg(unix)]
mod supervised;
mod telemetry;
mod vanishing;
