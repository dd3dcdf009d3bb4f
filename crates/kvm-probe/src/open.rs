//! Opening the node, with errors that say what would mend them.

use crate::error::ProbeError;
use kvm_ioctls::Kvm;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The only API version there has been since Linux 2.6.22 (Documentation/virt/kvm/api.rst).
const KVM_API_VERSION: i32 = 12;

pub(crate) fn open(path: &Path) -> Result<Kvm, ProbeError> {
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| ProbeError::NoNode {
        path: path.into(),
        hint: "the path has a NUL byte".into(),
    })?;
    let kvm = Kvm::new_with_path(c_path).map_err(|e| explain(path, e.errno()))?;
    match kvm.get_api_version() {
        KVM_API_VERSION => Ok(kvm),
        found => Err(ProbeError::ApiVersion { path: path.into(), found }),
    }
}

fn explain(path: &Path, errno: i32) -> ProbeError {
    let path = path.to_path_buf();
    match errno {
        libc::ENOENT => ProbeError::NoNode { path, hint: module_hint(&cpu_flags()) },
        libc::EACCES | libc::EPERM => ProbeError::NoPermission {
            path,
            hint: "join its group with `sudo usermod -aG kvm $USER` and log in again \
                   (or, in a container, pass the device with `--device /dev/kvm`)"
                .into(),
        },
        _ => ProbeError::Open {
            path,
            source: std::io::Error::from_raw_os_error(errno),
            hint: module_hint(&cpu_flags()),
        },
    }
}

fn cpu_flags() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().find(|l| l.starts_with("flags")).unwrap_or_default().to_owned()
}

/// Which module would make the node appear, judged from the CPU's flags.
pub(crate) fn module_hint(flags: &str) -> String {
    let has = |name: &str| flags.split_whitespace().any(|f| f == name);
    if has("vmx") {
        "load the module with `sudo modprobe kvm_intel`; if the BIOS disables VT-x, dmesg reports \
            that"
            .into()
    } else if has("svm") {
        "load the module with `sudo modprobe kvm_amd`; if the BIOS disables SVM, dmesg reports \
            that"
            .into()
    } else if has("hypervisor") {
        "this host is a virtual machine, and its CPU has neither vmx nor svm: enable nested \
            virtualisation on the machine that runs it"
            .into()
    } else {
        "the CPU has neither vmx nor svm: enable virtualisation in the firmware setup".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_the_module_of_the_cpu() {
        assert!(module_hint("flags : fpu vmx sse").contains("modprobe kvm_intel"));
        assert!(module_hint("flags : fpu svm sse").contains("modprobe kvm_amd"));
        assert!(module_hint("flags : fpu hypervisor").contains("nested"));
        assert!(module_hint("").contains("firmware setup"));
    }

    #[test]
    fn each_errno_says_what_to_do() {
        let path = Path::new("/dev/kvm");
        assert!(matches!(explain(path, libc::ENOENT), ProbeError::NoNode { .. }));
        let denied = explain(path, libc::EACCES);
        assert!(denied.to_string().contains("usermod -aG kvm"), "{denied}");
        assert!(matches!(explain(path, libc::ENODEV), ProbeError::Open { .. }));
    }

    #[test]
    fn a_file_that_is_no_node_is_refused() {
        assert!(matches!(open(Path::new("/nonexistent/kvm")), Err(ProbeError::NoNode { .. })));
        assert!(open(Path::new("/dev/null")).is_err());
    }
}
