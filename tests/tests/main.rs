//! One test binary for the whole suite: it links once. Each module states one kind of claim.

mod bench;
mod browser;
mod budget;
mod cli;
mod device;
mod diagnose;
mod driver;
mod engine;
mod golden;
mod kernels;
mod model_files;
mod probe;
mod report;
mod serve;
mod shaders;
mod simulation;
mod text;
mod tidy;
mod trace;
mod what_if;
