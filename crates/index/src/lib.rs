//! An index of saved runs: which there are, of which machine, since when, how long they took.
//!
//! The folders are the truth. A cache beside them, `index.jsonl`, holds a little of each session,
//! so that a list of thousands does not read them all. Every question first compares the folders
//! with the cache, by two time stamps a session: one of the session's folder, which changes when
//! `session.json` is replaced, and one of its `runs`, which changes when a run is committed. Only
//! sessions with other stamps are read. So nothing has to update the cache, and a vmeter that was
//! killed cannot leave a wrong one behind.
//!
//! A cache is replaced as a whole, by a rename. Of vmeters that do so at the same time the last
//! one wins, and the next question reads what that one had not seen. A line that cannot be read
//! is a session that is read again. Where the cache cannot be written, every folder is read each
//! time, and a note says so.

mod cache;
mod error;
mod filter;
mod machine;
mod query;
mod remove;
mod report;
pub mod result;
mod saved;
mod scan;

pub use error::IndexError;
pub use filter::{ago_or_date, Filter};
pub use query::Listing;
pub use remove::Removed;
pub use report::{RunSource, RunsExport, RunsReport};
pub use saved::remember;
pub use scan::{Index, Scan};
