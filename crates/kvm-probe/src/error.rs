//! What can go wrong, and what the user can do about it.

use std::path::PathBuf;

/// `/dev/kvm` can't be probed at all.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no node.
    #[error("{path} does not exist: {hint}")]
    NoNode {
        /// Node looked for.
        path: PathBuf,
        /// What would make it appear.
        hint: String,
    },
    /// The node is there, and this user may not open it.
    #[error("no permission to open {path}: {hint}")]
    NoPermission {
        /// Node that was refused.
        path: PathBuf,
        /// The command that mends it.
        hint: String,
    },
    /// Opening failed otherwise (`ENODEV`: node without a module behind it).
    #[error("cannot open {path}: {source}; {hint}")]
    Open {
        /// Node.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
        /// What would mend it.
        hint: String,
    },
    /// The file is not a KVM node, or one from before Linux 2.6.22.
    #[error("{path} speaks KVM API version {found}, expected 12: is it really a KVM node?")]
    ApiVersion {
        /// Node.
        path: PathBuf,
        /// What `KVM_GET_API_VERSION` returned.
        found: i32,
    },
    /// The helper thread could not be started.
    #[error("cannot start the probe's thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Building or running a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The node could not be opened.
    #[error(transparent)]
    Node(#[from] ProbeError),
    /// An ioctl was refused.
    #[error("{step} failed: {source}")]
    Kvm {
        /// The ioctl, e.g. `KVM_SET_SREGS`.
        step: &'static str,
        /// Its errno.
        source: kvm_ioctls::Error,
    },
    /// A system call other than KVM's failed.
    #[error("{step} failed: {source}")]
    System {
        /// The call, e.g. `mmap of 4096 bytes`.
        step: String,
        /// Its errno.
        source: std::io::Error,
    },
    /// The slots or the code asked for do not fit the guest's layout.
    #[error("guest layout: {0}")]
    Layout(String),
    /// An access outside a slot.
    #[error(
        "access of {len} bytes at offset {offset:#x} is outside the slot of {slot_bytes:#x} bytes"
    )]
    OutOfSlot {
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Size of the slot.
        slot_bytes: u64,
    },
    /// The guest left in a way that its code never should.
    #[error("guest stopped at rip {rip:#x} with {exit}, expected an `out` to port {port:#x}")]
    UnexpectedExit {
        /// The exit, as `VcpuExit` prints it.
        exit: String,
        /// Where the guest was.
        rip: u64,
        /// Port that was waited for.
        port: u16,
    },
}

impl VmError {
    pub(crate) fn kvm(step: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |source| VmError::Kvm { step, source }
    }

    pub(crate) fn last_os(step: impl Into<String>) -> Self {
        VmError::System { step: step.into(), source: std::io::Error::last_os_error() }
    }
}
