//! `vmeter trace stat FILE…`.

use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use vmeter_host_tracing::stat::report::{NamedTrace, TraceStatReport};
use vmeter_host_tracing::stat::{stat, StatOptions};
use vmeter_trace::stat::versus;

/// `vmeter trace stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// Traces: trace.dat, ftrace or perf text, QEMU log, xentrace, strace; plain, gz, zst, xz.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Clock rate of a trace whose time stamps count cycles, e.g. 2.0G (default: vmeter's estimate,
    /// if the trace allows one).
    #[arg(long, value_name = "HZ", value_parser = hertz)]
    cpu_hz: Option<f64>,
    /// Trace of the other machine, to compare row by row (default: no comparison). With several
    /// traces of each machine, vmeter takes the scatter between recordings into account.
    #[arg(long, value_name = "OTHER")]
    vs: Vec<PathBuf>,
    /// Unit in which --vs compares counts: second for a continuous load, trace for a load that ends
    /// by itself, such as a boot.
    #[arg(long, value_name = "UNIT", default_value = "second", requires = "vs")]
    per: Per,
    /// Output of QEMU's `info mtree -f`, from which vmeter names the devices at I/O ports and MMIO
    /// addresses (default: none).
    #[arg(long, value_name = "FILE")]
    mtree: Option<PathBuf>,
    /// Number of rows of each table on the terminal; 0 means all.
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Number of threads that read traces (default: one for each CPU).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Per {
    Second,
    Trace,
}

/// A frequency: digits, a point, and k, M or G.
pub fn hertz(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.trim_end_matches("Hz") {
        t if t.ends_with(['k', 'K']) => (&t[..t.len() - 1], 1e3),
        t if t.ends_with('M') => (&t[..t.len() - 1], 1e6),
        t if t.ends_with('G') => (&t[..t.len() - 1], 1e9),
        t => (t, 1.0),
    };
    let hz = digits.parse::<f64>().ok().map(|number| number * factor);
    hz.filter(|hz| hz.is_finite() && *hz > 0.0)
        .ok_or_else(|| format!("{text}: expected a frequency above 0, e.g. 2400000000 or 2.4G"))
}

/// Counts, shows and exports.
///
/// # Errors
/// As [`vmeter_host_tracing::stat::stat`]; an export that cannot be written.
pub fn run(arguments: Stat, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "trace stat")?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let options = StatOptions {
        files: arguments.files,
        cpu_hz: arguments.cpu_hz,
        vs: arguments.vs,
        per: match arguments.per {
            Per::Second => versus::Per::Second,
            Per::Trace => versus::Per::Trace,
        },
        mtree: arguments.mtree,
        threads: arguments.threads.map_or(cpus, usize::from),
        argv: vmeter_base::argv(),
    };
    let stats = stat(&options)?;
    let traces = stats.traces.iter();
    let report = TraceStatReport {
        envelope: &stats.envelope,
        traces: traces.map(|t| NamedTrace { file: &t.file, report: &t.report }).collect(),
        versus: stats.versus.as_ref(),
        warnings: &stats.warnings,
        top: arguments.top,
    };
    output::print(&report, out)?;
    output::export(out, &report)?;
    Ok(Status::Good)
}

#[cfg(test)]
mod tests {
    use super::hertz;

    #[test]
    fn frequencies() {
        assert_eq!(hertz("2.0G"), Ok(2e9));
        assert_eq!(hertz("2000000000"), Ok(2e9));
        assert_eq!(hertz("900MHz"), Ok(9e8));
        for bad in ["", "G", "-1", "0", "nan", "1e999", "fast"] {
            assert!(hertz(bad).is_err(), "{bad}");
        }
    }
}
