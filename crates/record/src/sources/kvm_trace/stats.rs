//! KVM's counters of one VM, in debugfs (virt/kvm/kvm_main.c, `kvm_create_vm_debugfs`).
//!
//! A VM's folder is `PID-FD` there. Its files hold the sum over the vCPUs.

use std::collections::BTreeMap;
use std::path::Path;

const FOLDER: &str = "/sys/kernel/debug/kvm";

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

/// How many VMs a process holds.
pub fn machines(pid: i32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| target.as_os_str() == "anon_inode:kvm-vm")
        .count()
}

/// The counters of a process's VMs, added up; empty if debugfs is not to be read.
pub fn of(pid: i32) -> BTreeMap<String, u64> {
    of_in(Path::new(FOLDER), pid)
}

fn of_in(folder: &Path, pid: i32) -> BTreeMap<String, u64> {
    let prefix = format!("{pid}-");
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let machines = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for machine in machines.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)) {
        for (file, name) in WANTED {
            let text = std::fs::read_to_string(machine.path().join(file)).ok();
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
    fn counters_of_the_process_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, exits) in [("7-12", "5\n"), ("7-13", "6\n"), ("77-3", "100\n"), ("7", "9\n")] {
            let machine = folder.path().join(name);
            std::fs::create_dir(&machine).expect("made");
            std::fs::write(machine.join("exits"), exits).expect("written");
            std::fs::write(machine.join("io_exits"), "not a number").expect("written");
        }
        assert_eq!(of_in(folder.path(), 7), BTreeMap::from([("exits".to_owned(), 11)]));
        assert!(of_in(&folder.path().join("none"), 7).is_empty());
        assert_eq!(machines(std::process::id() as i32), 0);
    }
}
