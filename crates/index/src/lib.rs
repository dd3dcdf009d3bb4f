//! An index of saved runs: which there are, of which machine, since when, how long they took.
//!
//! The folders are the truth and the index is a copy of a little of it, in one SQLite file
//! beside them. So it may be deleted, and it is built anew when it is damaged or of another
//! version. Every question first compares the folders with it, by two time stamps a session:
//! one of the session's folder, which changes when `session.json` is replaced, and one of its
//! `runs`, which changes when a run is committed. Only sessions with other stamps are read.
//! Nothing has to be told to the index, and a vmeter that was killed cannot leave it behind.
//!
//! Vmeters at the same time share the file by SQLite's own locks. Replacing a damaged file is
//! the one thing these don't cover (a journal would outlive its database), so whoever uses
//! the index holds `index.lock` shared, and whoever replaces it, exclusively.
//!
//! Where the file cannot be written, the index is held in memory, and says so.

mod database;
mod error;
mod filter;
mod machine;
mod query;
mod remove;
mod report;
pub mod result;
mod saved;
mod scan;

pub use database::Index;
pub use error::IndexError;
pub use filter::{ago_or_date, Filter};
pub use query::Listing;
pub use remove::Removed;
pub use report::{RunSource, RunsExport, RunsReport};
pub use saved::remember;
pub use scan::Scan;
