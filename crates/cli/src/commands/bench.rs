//! `vmeter bench`.

use crate::options::{ruled, FailIfSlower, Machine, Runs, SavedGate};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::{Args, Parser};
use vmeter_lab::bench::{bench, BenchOptions};
use vmeter_lab::Shown;
use vmeter_model::MachineSpec;
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, RunOptions, Views, Watch};

/// `vmeter bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// The machine that is the baseline of the comparison.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// Another machine to compare: the baseline with these options changed, e.g. --vs '--machine
    /// pc'.
    #[arg(long, value_name = "SPEC", allow_hyphen_values = true)]
    pub vs: Vec<String>,
    /// Run often enough to detect a difference of PCT percent. vmeter computes the number of runs
    /// from the noise of the first runs, but makes at most --runs runs. Without --detect, vmeter
    /// makes exactly --runs runs.
    #[arg(long, value_name = "PCT", value_parser = crate::options::positive)]
    pub detect: Option<f64>,
    /// Start N VMs at once, and repeat that --runs times. With N,M,… vmeter does this for each
    /// number, in random order. The report shows p50, p90 and p99 of the boot times. It also
    /// shows the mean tear-down time, and what the slowest VMs waited for (default: one VM at a
    /// time).
    #[arg(long, value_name = "N[,M…]", value_delimiter = ',', conflicts_with_all = ["detect", "fail_if_slower"])]
    pub concurrency: Vec<u32>,
    /// When a machine counts as too slow, compared with the first machine.
    #[command(flatten)]
    pub gate: FailIfSlower,
    /// Command line of your own VMM, which vmeter runs instead of its own machine.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// A machine given as one string: `--vs '--machine pc --smp 2'`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Variant {
    #[command(flatten)]
    machine: Machine,
    /// Label in the table.
    #[arg(long)]
    label: Option<String>,
    /// A command line of your own that replaces the baseline's.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Reads a `--vs` SPEC as changes to `base`; returns the label and the changed machine.
///
/// # Errors
/// A text that says what is wrong with SPEC.
pub(super) fn variant(base: &MachineSpec, spec: &str) -> anyhow::Result<(String, MachineSpec)> {
    let words = shell_words::split(spec).map_err(|e| {
        anyhow::anyhow!("--vs {spec:?}: {e}; expected machine options, e.g. --vs '--machine pc'")
    })?;
    let parsed = Variant::try_parse_from(&words).map_err(|e| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        anyhow::anyhow!(
            "--vs {spec:?}: {first}; expected machine options, e.g. --vs '--machine pc'"
        )
    })?;
    let label = parsed.label.unwrap_or_else(|| spec.to_owned());
    let change = parsed.machine.spec(parsed.command);
    Ok((label, overlay(base.clone(), change)))
}

fn overlay(base: MachineSpec, change: MachineSpec) -> MachineSpec {
    let mut append = base.append;
    append.extend(change.append);
    let mut vmm_arg = base.vmm_arg;
    vmm_arg.extend(change.vmm_arg);
    // Those of one build name nothing of another.
    let symbols = change.symbols.or(base.symbols.filter(|_| change.kernel.is_none()));
    MachineSpec {
        symbols,
        vmm: change.vmm.or(base.vmm),
        accel: change.accel.or(base.accel),
        machine: change.machine.or(base.machine),
        firmware: change.firmware.or(base.firmware),
        kernel: change.kernel.or(base.kernel),
        initrd: change.initrd.or(base.initrd),
        append,
        smp: change.smp.or(base.smp),
        memory_mib: change.memory_mib.or(base.memory_mib),
        pcie_root_ports: change.pcie_root_ports.or(base.pcie_root_ports),
        init: change.init.or(base.init),
        root: change.root.or(base.root),
        until: change.until.or(base.until),
        mark: if change.mark.is_empty() { base.mark } else { change.mark },
        timeout_s: change.timeout_s.or(base.timeout_s),
        command: if change.command.is_empty() { base.command } else { change.command },
        no_inject: change.no_inject || base.no_inject,
        end_vm: change.end_vm || base.end_vm,
        vmm_arg,
    }
}

/// Measures machines in turn, shows and exports the comparison.
///
/// # Errors
/// As [`vmeter_lab::bench::bench`]; an export that cannot be written.
pub fn run(arguments: Bench, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "bench")?;
    let base = arguments.machine.spec(arguments.command);
    let mut machines = vec![("baseline".to_owned(), base.clone())];
    for spec in &arguments.vs {
        machines.push(variant(&base, spec).map_err(usage)?);
    }
    let interrupt = Interrupt::install()?;
    let runs = RunOptions { gate: arguments.gate.kept(None), ..arguments.runs.options()? };
    let mut bar = Bar::new(out.quiet);
    let limit = SavedGate::of(runs.resume.as_deref()).limit(arguments.gate);
    if limit.is_some() && runs.resume.is_none() {
        vmeter_lab::bench::check_gate(machines.len(), runs.runs)?;
    }
    let (detect, concurrency) = (arguments.detect, arguments.concurrency);
    let options = BenchOptions { machines, detect, concurrency, runs };
    let (spread, result) = bench(&options, &mut Watch::new(&mut bar, &interrupt))?;
    let gates = limit.map_or_else(Vec::new, |limit| vmeter_lab::bench::gates(&result, &limit));
    let answer = spread.shown(Shown(result));
    let status = output::done(answer.as_ref(), &Views::default(), out)?;
    Ok(ruled(status, &gates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_changes_only_what_it_names() {
        let base = MachineSpec {
            machine: Some("q35".into()),
            append: vec!["quiet".into()],
            ..MachineSpec::default()
        };
        let (label, machine) =
            variant(&base, "--firmware qboot --machine pvh --append tsc=reliable").unwrap();
        assert_eq!(label, "--firmware qboot --machine pvh --append tsc=reliable");
        assert_eq!(machine.machine.as_deref(), Some("pvh"));
        assert_eq!(machine.firmware.as_deref(), Some("qboot"));
        assert_eq!(machine.append, ["quiet", "tsc=reliable"]);
        let error = variant(&base, "--machin pc").unwrap_err().to_string();
        assert!(error.contains("--machin"), "{error}");
    }
}
