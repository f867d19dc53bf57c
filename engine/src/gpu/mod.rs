//! The only code that names wgpu: device, pipelines, memory, one pass per step, read-back.
//!
//! Never has an idea of requests.
