//! Moments worth showing beside the spans.

use crate::anchors::{Anchor, Anchors};
use crate::facts::RunIndex;
use crate::lines::Hit;
use crate::patterns::{Means, On};
use crate::rules::{of_edk2, part_name};
use vmeter_model::{EventKind, Ns};

/// More than this is no help to anyone; the rest is left out, the last said.
const MAX_MARKS: usize = 200;

/// A guest that asks this waits for a person.
const LOGIN: &str = "login:";

/// True for a mark of a guest that waits for someone to log in.
pub fn is_login(text: &str) -> bool {
    text.ends_with(LOGIN)
}

/// The kernel's command line: by its own log, or by the VMM's `-append`.
pub(crate) fn command_line(facts: &RunIndex<'_>, argv: &[String]) -> Option<String> {
    let said = |line: &crate::lines::Line<'_>| {
        let text = line.text.strip_prefix("Kernel ").unwrap_or(line.text);
        let text = text.strip_prefix("command line: ").or(text.strip_prefix("Command line: "));
        text.filter(|_| line.stamp.is_some()).map(str::to_owned)
    };
    let given = || {
        let at = argv.iter().position(|word| word == "-append")?;
        argv.get(at + 1).cloned()
    };
    facts.lines.iter().find_map(said).or_else(given)
}

/// Lines of the kernel's log at which something else begins: of each kind the first, however
/// often it is said.
fn turns<'f, 'a>(facts: &'f RunIndex<'a>) -> impl Iterator<Item = &'f Hit<'a>> {
    let mut begun: Vec<Means> = Vec::new();
    facts.hits.iter().filter(move |hit| {
        let first = match hit.means {
            Means::Begins(..) | Means::GoesDown => !begun.contains(&hit.means),
            Means::Panic | Means::PowerOff => true,
            _ => false,
        };
        let turn = hit.on == On::Kernel && first;
        begun.extend(turn.then_some(hit.means));
        turn
    })
}

/// When a UEFI firmware's services ended (`ExitBootServices`): its virtio drivers let go of their
/// devices then, after the loader's last read, and before any driver of the kernel's.
fn exit_boot_services(facts: &RunIndex<'_>, anchors: &Anchors<'_>) -> Option<Ns> {
    let uefi = |h: &Hit<'_>| part_name(h.means).is_some_and(of_edk2);
    let drivers = [Anchor::Initcalls, Anchor::Userspace];
    let limit = drivers.iter().find_map(|anchor| anchors.get(*anchor))?.at;
    let before = || facts.seen.iter().rev().filter(|s| s.at < limit);
    let read = before().find(|s| matches!(s.what, EventKind::DiskRead { .. }))?.at;
    let reset = before().find(|s| *s.what == EventKind::VirtioReset)?.at;
    (read < reset && facts.hits.iter().any(uefi)).then_some(reset)
}

/// Marks in order of time, with those that the user named.
pub(crate) fn marks(
    facts: &RunIndex<'_>,
    anchors: &Anchors<'_>,
    named: &[(String, Ns)],
) -> Vec<(Ns, String)> {
    let second = facts.second.as_ref().map(|second| &second.facts);
    let mut marks: Vec<(Ns, String)> = facts
        .seen
        .iter()
        .chain(second.iter().flat_map(|second| second.seen))
        .filter_map(|s| {
            let text = match s.what {
                EventKind::Ready => "ready".to_owned(),
                EventKind::ShutdownStart => "shutdown begins".to_owned(),
                EventKind::PowerOff => "power off".to_owned(),
                EventKind::VmmKilled => "VMM killed by vmeter".to_owned(),
                EventKind::RunState { state } => format!("VMM: {state}"),
                EventKind::MachineReset => "the guest resets the machine".to_owned(),
                EventKind::Note { text } => text.clone(),
                EventKind::VmmExec
                | EventKind::WrapperExec
                | EventKind::VmmEntry
                | EventKind::VmmMain
                | EventKind::VmmWaits
                | EventKind::SnapshotPart { .. }
                | EventKind::Launched { .. }
                | EventKind::VmmExiting
                | EventKind::WrapperResumed
                | EventKind::VmmExit
                | EventKind::FirmwareLine { .. }
                | EventKind::ConsoleLine { .. }
                | EventKind::ReadyLine { .. }
                | EventKind::KernelLine { .. }
                | EventKind::Reached { .. }
                | EventKind::InitcallStart { .. }
                | EventKind::InitcallEnd { .. }
                | EventKind::InitcallLevel { .. }
                | EventKind::ModuleLoad { .. }
                | EventKind::StepStart { .. }
                | EventKind::StepEnd { .. }
                | EventKind::ProcessExec { .. }
                | EventKind::ProcessExit { .. }
                | EventKind::ProcessFork { .. }
                | EventKind::ProcessArguments { .. }
                | EventKind::ProcessWait { .. }
                | EventKind::ProcessReap { .. }
                | EventKind::ProcessGroup { .. }
                | EventKind::UnitFile { .. }
                | EventKind::PciConfig { .. }
                | EventKind::FwCfg { .. }
                | EventKind::DiskRead { .. }
                | EventKind::VmmRead { .. }
                | EventKind::VirtioReset
                | EventKind::Stalled { .. }
                | EventKind::ScreenCleared
                | EventKind::Count { .. } => return None,
            };
            Some((s.at, text))
        })
        .collect();
    marks.extend(exit_boot_services(facts, anchors).map(|at| (at, "ExitBootServices".to_owned())));
    let turns = turns(facts).chain(second.iter().flat_map(|second| turns(second)));
    marks.extend(turns.map(|h| (h.at, h.text.to_owned())));
    marks.extend(anchors.get(Anchor::Kexec).map(|s| (s.at, "kexec".to_owned())));
    let asks = |text: &str| is_login(text.trim_end());
    let lines = facts.lines.iter().chain(second.iter().flat_map(|second| &second.lines));
    let login = lines.into_iter().find(|line| line.console && asks(line.text));
    marks.extend(login.map(|line| (line.at, line.text.trim().to_owned())));
    marks.sort();
    marks.dedup();
    if marks.len() > MAX_MARKS {
        let left = marks.len() - MAX_MARKS;
        let at = marks[MAX_MARKS].0;
        marks.truncate(MAX_MARKS);
        marks.push((at, format!("{left} more are not shown")));
    }
    marks.extend(named.iter().map(|(name, at)| (*at, name.clone())));
    marks.sort();
    marks
}
