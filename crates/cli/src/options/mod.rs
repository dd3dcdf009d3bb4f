//! Options that several commands take.

mod machine;
mod many;
mod runs;
mod views;

pub use machine::Machine;
pub use many::Many;
pub use runs::Runs;
pub use views::{Views, Watch};
