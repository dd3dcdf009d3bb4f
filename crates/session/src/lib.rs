//! What every experiment shares, whatever it measures.
//!
//! A session is a folder: what was asked and the order of the runs are written before the
//! first run, and each finished run is committed by a rename, so that any session can be
//! killed, gone on with, shown, compared and merged. What a run *is* stays the experiment's
//! own ([`Runner`]); everything around it is here, once.

pub mod envelope;
mod execute;
mod experiment;
pub mod failure;
mod given;
pub mod host;
mod interrupt;
mod options;
mod progress;
pub mod shares;
mod store;

pub use execute::{execute, one_run, run_prepare, RunRequest, Runner};
pub use experiment::{Answer, Cut, Experiment, Views};
pub use given::Given;
pub use interrupt::{During, Interrupt};
pub use options::{begin, record, resumed, RunOptions};
pub use progress::{Progress, Watch};
pub use store::{
    cache_dir, fresh_dir, is_saved, latest, read_run, read_run_as, state_dir, AnySession, Finished,
    RunFile, SavedRun, Session,
};
