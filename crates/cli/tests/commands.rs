//! Tests of what the commands say and save, with played machines and files, in one binary: each file of it is a module.

#[path = "common/browser.rs"]
mod browser_driver;
mod common;
#[path = "common/repository.rs"]
mod repository;

#[path = "bombs/main.rs"]
mod bombs;
#[path = "chromium.rs"]
mod chromium;
#[path = "data/main.rs"]
mod data;
#[path = "failures.rs"]
mod failures;
#[path = "findings.rs"]
mod findings;
#[path = "full_disk.rs"]
mod full_disk;
#[path = "kinds.rs"]
mod kinds;
#[path = "memory.rs"]
mod memory;
#[path = "merge.rs"]
mod merge;
#[path = "nothing_lost.rs"]
mod nothing_lost;
#[path = "pairs.rs"]
mod pairs;
#[path = "range.rs"]
mod range;
#[path = "range_shards.rs"]
mod range_shards;
#[path = "recipes.rs"]
mod recipes;
#[path = "reports/main.rs"]
mod reports;
#[path = "restore_played.rs"]
mod restore_played;
#[path = "runs.rs"]
mod runs;
#[path = "sweep.rs"]
mod sweep;
#[path = "trace.rs"]
mod trace;
#[path = "trust.rs"]
mod trust;
#[path = "tune.rs"]
mod tune;
#[path = "views.rs"]
mod views;

/// Boots are checked for what they say here, not for how long they take.
const BOOTS_ALONE: bool = false;
