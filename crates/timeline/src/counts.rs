//! Counts of a run: final values as the sources give them, and counted events.

use crate::facts::RunIndex;
use crate::input::by_guest;
use vmeter_model::span::Counts;
use vmeter_model::{Event, EventKind};

const GUEST_INSNS: &str = "guest_insns";
const CONSOLE_BYTES: &str = "console_bytes";

/// Devices with a count of their own; more than any machine has.
const MAX_DEVICES: usize = 1024;

/// Everything countable. A value that a source gives wins over one counted here.
///
/// Counted here: `pci_config_reads` and `pci_config_writes` in all and by device
/// (`pci_config_reads:DEVICE`), `fw_cfg_selects`, `fw_cfg_bytes`, `initcalls`,
/// `modules`, `processes`, `firmware_lines`, `kernel_lines`; `console_bytes` from
/// the lines, each with the `\r\n` that a terminal adds. `guest_insns` is there only
/// if a source says that it counted the whole boot; in virtual time it is the count
/// at the end of the timeline. Of a run in virtual time that ended at its ready point,
/// what came after that is not counted.
pub(crate) fn counts(events: &[Event], facts: &RunIndex<'_>) -> Counts {
    let mut counts = Counts::new();
    let mut devices = 0;
    let inside = |e: &&Event| {
        if facts.virtual_time && by_guest(&e.what) {
            e.at <= facts.total
        } else {
            facts.host_end.is_none_or(|end| e.at <= end)
        }
    };
    // Of the line that ended such a run, and those after it, the host had read some bytes.
    let ready = events.iter().filter(|_| facts.host_end.is_some()).find_map(|e| match &e.what {
        EventKind::ReadyLine { text } if !text.is_empty() => Some(text.as_str()),
        _ => None,
    });
    let mut over = false;
    for event in events.iter().filter(inside) {
        match &event.what {
            EventKind::ConsoleLine { text, .. }
                if over || ready.is_some_and(|r| text.starts_with(r)) =>
            {
                over = true;
            }
            EventKind::PciConfig { write, device, .. } => {
                let name = if *write { "pci_config_writes" } else { "pci_config_reads" };
                add(&mut counts, name, 1);
                let name = format!("{name}:{device}");
                if devices < MAX_DEVICES || counts.contains_key(&name) {
                    devices += usize::from(!counts.contains_key(&name));
                    add(&mut counts, &name, 1);
                }
            }
            EventKind::FwCfg { bytes, .. } => {
                add(&mut counts, "fw_cfg_selects", 1);
                if *bytes > 0 {
                    add(&mut counts, "fw_cfg_bytes", *bytes);
                }
            }
            EventKind::ModuleLoad { .. } => add(&mut counts, "modules", 1),
            EventKind::ProcessExec { .. } => add(&mut counts, "processes", 1),
            EventKind::FirmwareLine { .. } => add(&mut counts, "firmware_lines", 1),
            EventKind::KernelLine { .. } => add(&mut counts, "kernel_lines", 1),
            EventKind::ConsoleLine { text, .. } => {
                add(&mut counts, CONSOLE_BYTES, text.len() as u64 + 2);
            }
            _ => {}
        }
    }
    if !facts.calls.all.is_empty() {
        add(&mut counts, "initcalls", facts.calls.all.len() as u64);
    }
    for event in events {
        match &event.what {
            // A console's is of all that the VMM wrote before it was gone.
            EventKind::Count { name, .. } if name == CONSOLE_BYTES && facts.host_end.is_some() => {}
            EventKind::Count { name, value } => {
                counts.insert(name.clone(), *value);
            }
            _ => {}
        }
    }
    if let Some(insns) = counts.get_mut(GUEST_INSNS).filter(|_| facts.virtual_time) {
        *insns = facts.last_insns().unwrap_or(*insns);
    }
    counts
}

fn add(counts: &mut Counts, name: &str, value: u64) {
    if let Some(count) = counts.get_mut(name) {
        *count = count.saturating_add(value);
    } else {
        counts.insert(name.to_owned(), value);
    }
}
