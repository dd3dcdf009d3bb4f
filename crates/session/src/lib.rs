//! What every experiment shares, whatever it measures.
//!
//! A session is a folder: what was asked and the order of the runs are written before the
//! first run, and each finished run is committed by a rename, so that any session can be
//! killed, gone on with, shown, compared and merged. What a run *is* stays the experiment's
//! own ([`Runner`]); everything around it is here, once.

pub mod changed;
mod dirs;
pub mod envelope;
mod execute;
mod experiment;
pub mod failure;
pub mod folder;
pub mod host;
pub mod identity;
mod interrupt;
pub mod limits;
mod measurement;
mod options;
mod progress;
mod resume_overrides;
mod run_file;
mod saved_in;
pub mod shares;
mod store;
pub mod subcommand;
mod suspension;
pub mod trust;

pub use dirs::{cache_dir, fresh_dir, is_saved, latest, state_dir};
pub use execute::{execute, one_run, RunRequest, Runner};
pub use experiment::{failed_runs, Answer, Experiment, Shardable, Views, NOT_CUT};
pub use interrupt::{During, Interrupt};
pub use measurement::{carry_out, Measurement};
pub use options::{begin, begin_with, pinned, record, RunOptions};
pub use progress::{Progress, Watch};
pub use resume_overrides::{resumed, ResumeOverrides};
pub use run_file::{impossible_total, RunFile};
pub use saved_in::are_saved;
pub use store::{read_run, read_run_as, AnySession, Finished, SavedRun, Session};
