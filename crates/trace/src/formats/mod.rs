//! One format, one file (trace.dat and perf.data: one folder).

pub mod ftrace_text;
mod lines;
pub mod perf_data;
pub mod perf_script;
pub mod qemu_log;
pub mod strace;
pub mod trace_dat;
pub mod xentrace;
