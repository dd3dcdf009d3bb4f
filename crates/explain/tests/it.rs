//! Tests of from traces to causes, in one binary: each file of it is a module.

mod common;
mod corpus;

#[path = "blame.rs"]
mod blame;
#[path = "detectors.rs"]
mod detectors;
#[path = "fresh.rs"]
mod fresh;
#[path = "gap.rs"]
mod gap;
#[path = "handlers.rs"]
mod handlers;
#[path = "held.rs"]
mod held;
#[path = "kernel.rs"]
mod kernel;
#[path = "limits.rs"]
mod limits;
#[path = "lives.rs"]
mod lives;
#[path = "loops.rs"]
mod loops;
#[path = "real.rs"]
mod real;
#[path = "scored.rs"]
mod scored;
#[path = "strace.rs"]
mod strace;
#[path = "truths.rs"]
mod truths;
#[path = "versus.rs"]
mod versus;
#[path = "vocabularies.rs"]
mod vocabularies;
#[path = "waiting.rs"]
mod waiting;
