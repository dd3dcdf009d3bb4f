//! Tests of trace formats and statistics, in one binary: each file of it is a module.

mod common;

#[path = "gaps.rs"]
mod gaps;
#[path = "parallel.rs"]
mod parallel;
#[path = "perf_data.rs"]
mod perf_data;
#[path = "references.rs"]
mod references;
#[path = "software_kvm.rs"]
mod software_kvm;
#[path = "trace_dat.rs"]
mod trace_dat;
#[path = "walk.rs"]
mod walk;
