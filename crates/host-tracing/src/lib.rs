//! `vmeter trace` and the recording half of `vmeter explain`: traces of this host recorded,
//! counted, compared, and drawn. What an event means is `vmeter-trace`'s.

pub mod explain_live;
pub mod find_vmm;
mod followed;
mod perfetto;
pub mod record;
pub mod stat;

pub use perfetto::PerfettoEvents;
