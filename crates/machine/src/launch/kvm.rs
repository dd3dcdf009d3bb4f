//! What the host's kernel says of a process's VMs and their vCPUs.
//!
//! debugfs has a folder `TID-FD` for each VM, after the thread that made it and the VM's
//! descriptor there (virt/kvm/kvm_main.c, `kvm_create_vm_debugfs`), and since Linux 6.0 the
//! thread that ran each vCPU (`vcpuN/pid`; arch/x86/kvm/debugfs.c). Only root reads it. For
//! everybody there is `/proc/PID/fd`, and the time that each thread ran a guest
//! (`guest_time` of its `stat`; proc(5)), in ticks of the clock.

use std::path::{Path, PathBuf};
use vmeter_base::process::{descriptors, Stat, KVM_VCPU, KVM_VM};

const FOLDER: &str = "/sys/kernel/debug/kvm";

/// How many VMs a process holds.
pub fn machines(pid: i32) -> usize {
    count(pid, |name| name == KVM_VM)
}

fn count(pid: i32, wanted: impl Fn(&str) -> bool) -> usize {
    descriptors(pid).filter(|(_, target)| target.to_str().is_some_and(&wanted)).count()
}

/// The folders of a process's VMs in debugfs; none if it is not to be read.
pub fn folders(pid: i32) -> Vec<PathBuf> {
    folders_in(Path::new(FOLDER), &threads(pid))
}

fn threads(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).chain([pid]).collect()
}

/// Those that one of `threads` has made or runs.
pub fn folders_in(folder: &Path, threads: &[i32]) -> Vec<PathBuf> {
    let machines = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_them = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let maker = name.split_once('-').and_then(|(tid, _)| tid.parse().ok());
        maker.is_some_and(|tid| threads.contains(&tid))
            || vcpu_threads(path).iter().any(|tid| threads.contains(tid))
    };
    machines.map(|entry| entry.path()).filter(of_them).collect()
}

/// The threads that ran a VM's vCPUs, if this kernel says so.
fn vcpu_threads(machine: &Path) -> Vec<i32> {
    let vcpus = std::fs::read_dir(machine).into_iter().flatten().flatten();
    vcpus
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("vcpu"))
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("pid")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .collect()
}

/// True if a thread of a process ran a vCPU: as KVM says, as the time says that it ran a
/// guest, or, where a guest was too short for that, as its name says beside a vCPU's
/// descriptor.
pub fn is_vcpu(pid: i32, tid: i32) -> bool {
    let of_kvm = || folders(pid).iter().any(|machine| vcpu_threads(machine).contains(&tid));
    let Some(stat) = Stat::of_thread(pid, tid) else { return of_kvm() };
    let named = || names_a_vcpu(&stat.name) && count(pid, |name| name.starts_with(KVM_VCPU)) > 0;
    stat.guest_time > 0 || of_kvm() || named()
}

fn names_a_vcpu(name: &str) -> bool {
    name.to_ascii_lowercase().contains("vcpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_by_who_made_or_runs_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for (machine, runs) in [("7-12", "70\n"), ("77-3", "71\n"), ("8-3", "9\n"), ("7", "7\n")] {
            let vcpu = folder.path().join(machine).join("vcpu0");
            std::fs::create_dir_all(&vcpu).expect("made");
            std::fs::write(vcpu.join("pid"), runs).expect("written");
        }
        let found = |threads: &[i32]| -> Vec<String> {
            let mut names: Vec<String> = folders_in(folder.path(), threads)
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
                .collect();
            names.sort();
            names
        };
        assert_eq!(found(&[7]), ["7", "7-12"]);
        assert_eq!(found(&[71, 9]), ["77-3", "8-3"], "by its vCPU's thread");
        assert_eq!(found(&[1]), [""; 0]);
        assert!(folders_in(&folder.path().join("none"), &[7]).is_empty());
    }

    #[test]
    fn a_thread_that_ran_a_guest() {
        assert!(names_a_vcpu("fc_vcpu 0") && names_a_vcpu("kvm-VCPU-0"));
        assert!(!names_a_vcpu("vmm"));
        let me = std::process::id() as i32;
        assert!(!is_vcpu(me, me));
        assert_eq!(machines(me), 0);
    }
}
