//! What is booted: VMM back ends, their capabilities, launching them suspended.

pub mod launch;
pub mod plan;
