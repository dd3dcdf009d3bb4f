//! What a user asks to be booted.

use crate::accel::AskedAccel;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The ready point that a guest tells its VMM, as `--until` has it.
pub const GUEST_BOOTED: &str = "guest-booted";

/// What was chosen for a machine. On disk, the three in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, String, String)", into = "(String, String, String)")]
pub struct ResolvedOption {
    /// What, e.g. `accel`.
    pub what: String,
    /// Its value.
    pub value: String,
    /// Why, or the option that changes it.
    pub note: String,
}

impl ResolvedOption {
    /// A choice.
    pub fn new(what: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Self {
        ResolvedOption { what: what.into(), value: value.into(), note: note.into() }
    }
}

impl From<(String, String, String)> for ResolvedOption {
    fn from((what, value, note): (String, String, String)) -> Self {
        ResolvedOption { what, value, note }
    }
}

impl From<ResolvedOption> for (String, String, String) {
    fn from(ResolvedOption { what, value, note }: ResolvedOption) -> Self {
        (what, value, note)
    }
}

/// The MACHINE options, the same wherever a machine is described.
///
/// `None` means "not said": the back end chooses, and says what it chose and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineSpec {
    /// A back end by name (`qemu`, `firecracker`, `mock`, …), or the path of a VMM.
    pub vmm: Option<String>,
    /// `auto`, `kvm`, `tcg` or `icount`.
    pub accel: Option<AskedAccel>,
    /// `q35`, `pc`, `microvm` or `pvh` (q35 with an uncompressed kernel entered by PVH).
    pub machine: Option<String>,
    /// `seabios`, `qboot`, or a firmware file.
    pub firmware: Option<String>,
    /// Kernel image; the cached Debian kernel if absent.
    pub kernel: Option<PathBuf>,
    /// Symbols of the kernel's build (`System.map`, `vmlinux`), for a kernel that has none itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols: Option<PathBuf>,
    /// Initial RAM disk; the appliance for `init` if absent.
    pub initrd: Option<PathBuf>,
    /// Added to the kernel command line.
    pub append: Vec<String>,
    /// vCPUs.
    pub smp: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u32>,
    /// Empty PCIe root ports.
    pub pcie_root_ports: Option<u32>,
    /// Appliance: `minimal` or `udev`.
    pub init: Option<String>,
    /// Root: `initramfs`, `dax`, `nvdimm` or `virtio-blk`.
    pub root: Option<String>,
    /// `userspace`, `poweroff` or `line:REGEX`.
    pub until: Option<String>,
    /// Moments to be marked, each `NAME=REGEX` of a line of the console.
    pub mark: Vec<String>,
    /// Give up after this many seconds.
    pub timeout_s: Option<u32>,
    /// A VMM command line of the user's own (after `--`); replaces all but `until`/`timeout`.
    pub command: Vec<String>,
    /// Add nothing to the user's command line.
    pub no_inject: bool,
    /// End what the command line leaves running too, a daemon's VM among it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub end_vm: bool,
    /// Arguments of the VMM after those that the other options make; not for `command`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmm_arg: Vec<String>,
}

impl MachineSpec {
    /// True for a machine that is played from a script (`--vmm mock`): nothing runs.
    pub fn is_played(&self) -> bool {
        self.vmm.as_deref() == Some("mock")
    }
}
