//! Is what vmeter concludes as sure as it says? Thousands of sessions of the shipped commands, on
//! a machine that is played (`--vmm mock`) with noise as hosts have it, of which the truth is
//! known. `make test` has a small cut; `make calibration` does all of it and writes the table of
//! docs/results/calibration.md. Every session has its own seed, so that a result repeats.

#[path = "../common/mod.rs"]
mod common;
mod compared;
mod costs;
mod history;
mod ranges;
mod rare;
mod rates;
mod saved;
mod searched;
mod swept;
mod worlds;

/// Boots are timed here, so each has the host for itself.
const BOOTS_ALONE: bool = true;
