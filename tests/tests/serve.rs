//! The server as its clients see it: the real binary with the real model behind a port of its own.
//!
//! Loading costs a second, so a test states many claims about one server. Nothing sleeps: what is waited for is looked at
//! again until it is there, or until it is clear that it never comes.

mod answers;
mod clients;
mod curl;
mod gateway;
mod hostile;
mod life;
mod load;
mod openapi;
mod server;
mod vanishing;
