//! KVM's counters of one VM, in debugfs: files that hold the sum over the vCPUs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use vmeter_machine::launch::kvm;

/// Counters worth a row, and the name of the row.
const WANTED: &[(&str, &str)] = &[
    ("exits", "exits"),
    ("io_exits", "kvm_io_exits"),
    ("mmio_exits", "kvm_mmio_exits"),
    ("halt_exits", "kvm_halt_exits"),
    ("irq_exits", "kvm_irq_exits"),
    ("signal_exits", "kvm_signal_exits"),
    ("irq_injections", "kvm_irq_injections"),
    ("hypercalls", "kvm_hypercalls"),
    ("insn_emulation", "kvm_insn_emulations"),
    ("pf_taken", "kvm_page_faults"),
];

/// The counters of a process's VMs, added up; empty if debugfs is not to be read.
pub fn of(pid: i32) -> BTreeMap<String, u64> {
    of_machines(&kvm::folders(pid))
}

fn of_machines(machines: &[PathBuf]) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for machine in machines {
        for (file, name) in WANTED {
            let text = std::fs::read_to_string(machine.join(file)).ok();
            let value = text.and_then(|text| text.trim().parse::<u64>().ok());
            if let Some(value) = value {
                let count = counts.entry((*name).to_owned()).or_default();
                *count = count.saturating_add(value);
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_machines_are_added_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let machines = [("7-12", "5\n"), ("9-13", "6\n")].map(|(name, exits)| {
            let machine = folder.path().join(name);
            std::fs::create_dir(&machine).expect("made");
            std::fs::write(machine.join("exits"), exits).expect("written");
            std::fs::write(machine.join("io_exits"), "not a number").expect("written");
            machine
        });
        assert_eq!(of_machines(&machines), BTreeMap::from([("exits".to_owned(), 11)]));
        assert!(of_machines(&[folder.path().join("none")]).is_empty());
    }
}
