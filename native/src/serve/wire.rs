//! What goes over the wire: OpenAI's requests as they are read, its answers as they are written.
//!
//! It knows neither engine thread nor socket. Invariant: an unknown field is ignored, a known one that is not built is
//! refused by name, and a field of the wrong type or outside its range is named with what it must be.

pub mod answers;
pub mod call;
pub mod fields;
pub mod logprobs;
pub mod messages;
pub mod ranges;
pub mod unbuilt;
