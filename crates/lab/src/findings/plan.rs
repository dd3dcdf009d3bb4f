//! Which machines a session of findings boots, and in which order.

use super::catalogue::{Finding, Pair, UserRemedy};
use super::change::changed;
use super::consoles;
use super::machine_builder::{describable, MachineBuilder};
use super::user_machine::{self, OwnMachine};
use crate::blocks::in_blocks;
use std::path::Path;
use vmeter_machine::backend::Machine;
use vmeter_model::findings::{PlannedContrast, PlannedFinding};
use vmeter_model::run::{PlannedRun, WatchLevel};
use vmeter_model::{Accel, AskedAccel, MachineSpec};

/// Label of the machine that is asked about.
pub(crate) const BASELINE: &str = "baseline";

/// The machines of a session, each once, and what is compared.
#[derive(Debug, Default)]
pub(crate) struct Menu {
    /// Booted in every block: (label, machine).
    pub timed: Vec<(String, MachineSpec)>,
    /// Booted once, in virtual time.
    pub exact: Vec<(String, MachineSpec)>,
    /// What is compared.
    pub findings: Vec<PlannedFinding>,
    /// Labels of the machines that print known amounts to their consoles.
    pub printing: Vec<String>,
}

impl Menu {
    /// The label of a machine, which is added if it is new.
    fn label(&mut self, wanted: &str, spec: MachineSpec) -> String {
        if let Some((label, _)) = self.timed.iter().find(|(_, known)| *known == spec) {
            return label.clone();
        }
        let taken = |label: &str| self.timed.iter().any(|(known, _)| known == label);
        let label = (1..)
            .map(|n| if n == 1 { wanted.to_owned() } else { format!("{wanted} {n}") })
            .find(|label| !taken(label))
            .unwrap_or_default();
        self.timed.push((label.clone(), spec));
        label
    }

    fn spec(&self, label: &str) -> Option<&MachineSpec> {
        self.timed.iter().find(|(known, _)| known == label).map(|(_, spec)| spec)
    }

    /// The same two machines in virtual time, where that can be.
    fn add_exact(&mut self, with: &str, without: &str) -> Option<(String, String)> {
        let label = |label: &str| format!("{label}, icount");
        let both = [with, without].map(|own| Some((label(own), virtual_time(self.spec(own)?)?)));
        let [Some(with), Some(without)] = both else { return None };
        for machine in [&with, &without] {
            if !self.exact.contains(machine) {
                self.exact.push(machine.clone());
            }
        }
        Some((with.0, without.0))
    }
}

/// The machine in virtual time; none where it can't be: QEMU's translator needs one vCPU for it
/// before 8.1, and I/O ends when the host's does.
fn virtual_time(spec: &MachineSpec) -> Option<MachineSpec> {
    let one = spec.smp.unwrap_or(1) == 1;
    let quiet = spec.root.as_deref().unwrap_or("initramfs") == "initramfs";
    let accel = Some(AskedAccel::Only(Accel::Icount));
    (one && quiet && spec.command.is_empty()).then(|| MachineSpec { accel, ..spec.clone() })
}

/// What is asked of a machine described by options.
pub(crate) fn of_options(findings: &[&Finding], builder: &MachineBuilder<'_>, exact: bool) -> Menu {
    let mut menu = Menu::default();
    menu.label(BASELINE, builder.base.clone());
    for finding in findings {
        let planned = of_finding(&mut menu, finding, builder, exact);
        menu.findings.push(planned);
    }
    if findings.iter().any(|finding| finding.cause.id == consoles::FINDING) {
        for label in consoles::LABELS {
            if let Ok(spec) = consoles::machine(builder, label) {
                let label = menu.label(label, spec);
                menu.printing.push(label);
            }
        }
    }
    menu
}

fn of_finding(
    menu: &mut Menu,
    finding: &Finding,
    builder: &MachineBuilder<'_>,
    exact: bool,
) -> PlannedFinding {
    let mut planned =
        PlannedFinding { id: finding.cause.id.to_owned(), ..PlannedFinding::default() };
    for pair in finding.contrasts {
        match of_pair(menu, finding, pair, builder, exact) {
            Ok(contrast) => planned.contrasts.push(contrast),
            Err(why) => planned.inapplicable = planned.inapplicable.or(Some(why)),
        }
    }
    // What one of several can't be had for is no reason against the others.
    if !planned.contrasts.is_empty() {
        planned.inapplicable = None;
    }
    planned
}

fn of_pair(
    menu: &mut Menu,
    finding: &Finding,
    pair: &Pair,
    builder: &MachineBuilder<'_>,
    exact: bool,
) -> Result<PlannedContrast, String> {
    let with = changed(builder.base, pair.with, builder)?;
    let without =
        pair.without.map(|changes| changed(builder.base, changes, builder)).transpose()?;
    if without.as_ref() == Some(&with) {
        return Err("the remedy changes nothing in this machine's configuration".into());
    }
    let name = |side: &str| match pair.name {
        "" => format!("{}: {side}", finding.cause.id),
        name => format!("{}: {name}: {side}", finding.cause.id),
    };
    for spec in [Some(&with), without.as_ref()].into_iter().flatten() {
        describable(spec, builder)?;
    }
    let with = menu.label(&name("with"), with);
    let without = without.map(|spec| menu.label(&name("without"), spec));
    let other = without.as_ref().unwrap_or(&with);
    let exact = (pair.exact && exact).then(|| menu.add_exact(&with, other)).flatten();
    Ok(PlannedContrast {
        name: pair.name.to_owned(),
        exact,
        with,
        without,
        expected: finding.expected.iter().map(|name| (*name).to_owned()).collect(),
        units: pair.units.map(|(units, unit)| (units, unit.to_owned())),
    })
}

/// What is asked of a command line of the user's own.
pub(crate) fn of_own(
    findings: &[&Finding],
    base: &MachineSpec,
    machine: &Machine,
    cache: &Path,
) -> Menu {
    let mut menu = Menu::default();
    let with = menu.label(BASELINE, base.clone());
    let own = OwnMachine::of(machine);
    for finding in findings {
        let mut planned =
            PlannedFinding { id: finding.cause.id.to_owned(), ..PlannedFinding::default() };
        match &finding.user_remedy {
            UserRemedy::Never(why) => planned.inapplicable = Some((*why).to_owned()),
            UserRemedy::Remedy(remedy) => {
                let unsafe_here = || {
                    let needs = remedy.needs.filter(|_| !remedy.is_safe_in(&own))?;
                    Some(format!(
                        "with the remedy you lose {}; to allow that: vmeter tune --allow {needs}",
                        remedy.gives_up
                    ))
                };
                let absent = own.closed().or_else(|| (remedy.absent)(&own));
                let made = match absent.or_else(unsafe_here) {
                    Some(why) => Err(why),
                    None => user_machine::changed(base, machine, remedy.changes, cache),
                };
                match made {
                    Err(why) => planned.inapplicable = Some(why),
                    Ok(spec) => {
                        let without = menu.label(&format!("without {}", finding.cause.id), spec);
                        planned.contrasts.push(PlannedContrast {
                            with: with.clone(),
                            without: Some(without),
                            expected: finding.expected.iter().map(|e| (*e).to_owned()).collect(),
                            ..PlannedContrast::default()
                        });
                    }
                }
            }
        }
        menu.findings.push(planned);
    }
    menu
}

/// Blocks of all timed machines, each in an order of its own, warm-ups first; then the machines
/// in virtual time, once each.
pub(crate) fn runs(
    timed: usize,
    exact: usize,
    warmups: u32,
    runs: u32,
    seed: u64,
) -> Vec<PlannedRun> {
    let watch = WatchLevel::Light;
    let mut all = in_blocks(timed, (warmups, runs), seed, |_| watch);
    all.extend((timed..timed + exact).map(|machine| PlannedRun { machine, warmup: false, watch }));
    all
}
