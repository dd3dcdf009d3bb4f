//! `vmeter memory`.

use super::bench::variant;
use crate::options::{Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use vmeter_lab::memory::{memory, MemoryOptions};
use vmeter_lab::Shown;
use vmeter_model::MachineSpec;
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter memory`.
#[derive(Debug, Args)]
pub struct Memory {
    /// vmeter measures its own guest in two separate boots: at the ready point, and after the guest
    /// has read this many MiB of a file on its root (default: 64; at most 64). With 0, vmeter
    /// measures only at the ready point.
    #[arg(long, value_name = "MIB")]
    pub read: Option<u32>,
    /// The machine. --root takes several root devices, separated by commas, to compare them.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// Another machine to compare: the first machine with these options changed, e.g. --vs
    /// '--kernel FILE'.
    #[arg(long, value_name = "SPEC", allow_hyphen_values = true)]
    pub vs: Vec<String>,
    /// Command line of your own VMM, which vmeter runs instead of its own machine.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// The machines by label: one for each root, then the variants of the first.
fn machines(base: &MachineSpec, vs: &[String]) -> anyhow::Result<Vec<(String, MachineSpec)>> {
    let roots: Vec<&str> = base.root.as_deref().map_or(vec![], |roots| roots.split(',').collect());
    let mut all: Vec<(String, MachineSpec)> = roots
        .iter()
        .map(|root| {
            ((*root).to_owned(), MachineSpec { root: Some((*root).into()), ..base.clone() })
        })
        .collect();
    if all.is_empty() {
        let label = if base.command.is_empty() { "initramfs" } else { "machine" };
        all.push((label.into(), base.clone()));
    }
    let first = all[0].1.clone();
    for spec in vs {
        all.push(variant(&first, spec).map_err(usage)?);
    }
    Ok(all)
}

/// Looks, shows and exports.
///
/// # Errors
/// As [`vmeter_lab::memory::memory`]; an export that cannot be written.
pub fn run(arguments: Memory, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "memory")?;
    let base = arguments.machine.spec(arguments.command);
    let options = MemoryOptions {
        machines: machines(&base, &arguments.vs)?,
        read_mib: arguments.read,
        runs: arguments.runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = memory(&options, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(&Shown(result), &Views::default(), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_for_each_root() {
        let base = MachineSpec { root: Some("dax,virtio-blk".into()), ..MachineSpec::default() };
        let all = machines(&base, &["--smp 2".into()]).expect("valid");
        let labels: Vec<&str> = all.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, ["dax", "virtio-blk", "--smp 2"]);
        assert_eq!(all[2].1.root.as_deref(), Some("dax"));
        let one = machines(&MachineSpec::default(), &[]).expect("valid");
        assert_eq!((one[0].0.as_str(), one[0].1.root.as_deref()), ("initramfs", None));
    }
}
