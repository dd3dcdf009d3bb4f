//! Which process is a VMM: one that has a virtual machine of KVM's open.

use crate::followed::numbers;
use anyhow::Result;
use vmeter_base::process::{descriptors, KVM_VM};
use vmeter_session::failure::usage;

/// The process that runs a virtual machine, if there is just one.
///
/// # Errors
/// When there is none, or there are several: these are named.
pub fn find_vmm() -> Result<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let found: Vec<i32> =
        numbers("/proc").into_iter().filter(|pid| *pid != own && has_vm(*pid)).collect();
    match found.as_slice() {
        [pid] => Ok(*pid),
        [] => Err(usage(
            "--pid auto: found no process with a KVM virtual machine among the processes that \
                this user may inspect; give the VMM's process id with --pid PID",
        )),
        several => {
            let named: Vec<String> =
                several.iter().map(|pid| format!("{pid} ({})", name(*pid))).collect();
            Err(usage(format!(
                "--pid auto: several processes run virtual machines: {}; give the process id of \
                    one of them",
                named.join(", ")
            )))
        }
    }
}

fn has_vm(pid: i32) -> bool {
    descriptors(pid).any(|(_, target)| target.as_os_str() == KVM_VM)
}

fn name(pid: i32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end().to_owned()
}
