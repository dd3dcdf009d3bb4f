//! One format, one file (trace.dat: one folder).

pub mod trace_dat;
pub mod xentrace;
