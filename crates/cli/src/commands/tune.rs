//! `vmeter tune`.

use crate::options::{seconds, Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::tune::{script, tune, TuneOptions};
use vmeter_lab::Shown;
use vmeter_model::tune::{Allow, Keep};
use vmeter_render::Target;
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter tune`.
#[derive(Debug, Args)]
pub struct Tune {
    /// Limit of the total time of all boots, e.g. 900s, 15m or 1h (default: 15m).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub budget: Option<f64>,
    /// Smallest gain that makes a change worth recommending, in percent of the boot's time
    /// (default: 1%).
    #[arg(long, value_name = "PCT", value_parser = share)]
    pub worth: Option<f64>,
    /// Further features that the tuned machine must keep (default: none). In any case it keeps
    /// vCPUs, memory, disks and network cards, still gets ready, and still powers off.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = crate::options::word::<Keep>())]
    pub keep: Vec<Keep>,
    /// Also try these kinds of change, which make the guest or its data less safe, or replace its
    /// kernel (default: none).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = crate::options::word::<Allow>())]
    pub allow: Vec<Allow>,
    /// Write the tuned machine as a shell script (default: no file).
    #[arg(short, long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Show every candidate change, with the reason why it was taken or rejected.
    #[arg(long)]
    pub long: bool,
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// How often vmeter repeats runs. --runs is the number of runs of the last measurement, which
    /// compares the original machine with the tuned one.
    #[command(flatten)]
    pub runs: Runs,
    /// Command line of your own VMM.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// A length of time, s.
fn time(text: &str) -> Result<f64, String> {
    seconds(text, &[("s", 1.0), ("m", 60.0), ("h", 3600.0)])
        .filter(|s| *s > 0.0)
        .ok_or_else(|| "expected a time such as 900s, 15m or 1h".to_owned())
}

/// A share of 0 to 1, from percent.
fn share(text: &str) -> Result<f64, String> {
    match crate::options::positive(text.strip_suffix('%').unwrap_or(text)) {
        Ok(percent) if percent < 100.0 => Ok(percent / 100.0),
        _ => Err("expected a percentage above 0 and below 100, such as 1%".into()),
    }
}

/// Finds the fastest equivalent of a machine, shows and exports it.
///
/// # Errors
/// As [`vmeter_lab::tune::tune`]; an export or a script that cannot be written.
pub fn run(arguments: Tune, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "tune")?;
    if let Some(file) = &arguments.output_file {
        output::check_target(&Target::File(file.clone()))?;
    }
    let options = TuneOptions {
        spec: arguments.machine.spec(arguments.command),
        budget_s: arguments.budget,
        worth: arguments.worth,
        keep: arguments.keep,
        allow: arguments.allow,
        runs: arguments.runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = tune(&options, &mut Watch::new(&mut bar, &interrupt))?;
    if let Some(file) = &arguments.output_file {
        let text = script::script(&result);
        vmeter_base::files::write_program(file, text.as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let views = Views { long: arguments.long, ..Views::default() };
    output::done(&Shown(result), &views, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_have_units() {
        assert_eq!((time("15m"), time("90s"), time("1.5h")), (Ok(900.0), Ok(90.0), Ok(5400.0)));
        assert!(["15", "m", "-1m", "", "1d", "infs"].iter().all(|text| time(text).is_err()));
        assert_eq!((share("1%"), share("2.5")), (Ok(0.01), Ok(0.025)));
        assert!(["0", "100%", "x"].iter().all(|text| share(text).is_err()));
    }
}
