//! Small things that every crate of vmeter may use; this one uses none of them.

pub mod envelope;
pub mod estimate;
pub mod time;

pub use envelope::Envelope;
pub use estimate::Estimate;
pub use time::{seconds, Ns};
