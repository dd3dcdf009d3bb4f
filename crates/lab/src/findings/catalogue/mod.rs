//! The known causes of a slow boot. A new one is a `Finding` in a file here and a line in
//! [`CATALOGUE`].

mod console;
mod cpus;
pub(crate) mod files;
mod firmware;
mod initramfs;
mod kernel;
mod kernels;
mod pci;
mod remedy;
mod userspace;
mod vmm;

use super::change::Change;
pub(crate) use remedy::{Part, Remedy};
use std::ffi::OsString;
use std::path::Path;
use vmeter_model::findings::Price;
use vmeter_timeline::registry::Named;

/// Where the published figures are from.
pub(crate) const SOURCE: &str =
    "findings of the libguestfs project's boot-benchmark and boot-analysis (2016)";

/// A known cause.
pub(crate) struct Finding {
    /// Its name.
    pub cause: Named,
    /// What it is, in a sentence.
    pub what: &'static str,
    /// What was published of it, in words.
    pub published: &'static str,
    /// What stands for it here, where it can't be had itself; else empty.
    pub stand_in: &'static str,
    /// Phases and activities in which it is expected.
    pub expected: &'static [&'static str],
    /// What is compared, the headline first.
    pub contrasts: &'static [Pair],
    /// What it takes to be rid of it.
    pub price: Price,
    /// How to be rid of it, in words.
    pub remedy: &'static str,
    /// How a user's own machine is rid of it.
    pub user_remedy: UserRemedy,
}

/// Two machines, both made of the one that is asked about.
pub(crate) struct Pair {
    /// What it is, where a finding has several; else empty.
    pub name: &'static str,
    /// What makes the machine with the cause.
    pub with: &'static [Change],
    /// What makes the machine without it; none where a part of the boot (`expected`) is
    /// measured as it is.
    pub without: Option<&'static [Change]>,
    /// Units that they differ in.
    pub units: Option<(f64, &'static str)>,
    /// True if virtual time says the same: no waiting, no host.
    pub exact: bool,
}

impl Pair {
    /// The only comparison of a finding.
    pub const fn of(with: &'static [Change], without: &'static [Change]) -> Self {
        Pair { name: "", with, without: Some(without), units: None, exact: true }
    }

    /// A part of the boot, as it is.
    pub const fn part() -> Self {
        Pair { name: "", with: &[], without: None, units: None, exact: true }
    }

    /// One of several.
    pub const fn named(self, name: &'static str) -> Self {
        Pair { name, ..self }
    }

    /// Differing in so many of something.
    pub const fn per(self, units: f64, unit: &'static str) -> Self {
        Pair { units: Some((units, unit)), ..self }
    }

    /// Not in virtual time.
    pub const fn timed_only(self) -> Self {
        Pair { exact: false, ..self }
    }
}

/// How a user's own command line is rid of a cause.
pub(crate) enum UserRemedy {
    /// By this, if the command line has the cause.
    Remedy(Remedy),
    /// By nothing that leaves the machine what it is, or nothing at all: the reason.
    Never(&'static str),
}

/// A change of a user's command line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UserChange {
    /// Words on the kernel's command line.
    Kernel(&'static str),
    /// Arguments at the end.
    Arguments(&'static [&'static str]),
    /// A word of the kernel's command line less.
    KernelLess(&'static str),
    /// All words of the kernel's command line less that set this parameter.
    KernelWithout(&'static str),
    /// Files that have to be made first, and arguments that are replaced or left out: what it is in a word,
    /// and how it is done.
    Make(&'static str, OwnMaker),
}

/// Changes an argument vector; the path is vmeter's cache folder.
///
/// # Errors
/// Why it can't be done here, in words.
pub(crate) type OwnMaker = fn(&Path, &mut Vec<OsString>) -> Result<(), String>;

/// All findings, in the order in which a boot meets them.
pub(crate) const CATALOGUE: &[&Finding] = &[
    &vmm::LINK_LOADING,
    &vmm::FEATURE_DETECTION,
    &vmm::MONITOR_WAIT,
    &vmm::FW_CFG_DMA,
    &console::SERIAL_BIOS,
    &firmware::BIOS_FAST,
    &firmware::QBOOT,
    &firmware::DISK_PROBE,
    &console::UART_COST,
    &console::QUIET,
    &kernel::ENTRY,
    &kernel::FTRACE,
    &kernel::LOCK_PREFIXES,
    &kernel::ACPI_OFF,
    &cpus::VCPUS,
    &cpus::TSC_RELIABLE,
    &pci::PROBE,
    &pci::PARALLEL,
    &kernel::SERIAL_8250,
    &kernel::CRYPTO_TESTS,
    &kernel::INITCALLS,
    &kernels::CUSTOM,
    &kernels::MINIMAL,
    &initramfs::MODULES,
    &initramfs::LIBC,
    &initramfs::UNCOMPRESSED,
    &initramfs::STRIP,
    &pci::VIRTIO_PCI,
    &userspace::DAX,
    &userspace::UDEV,
    &userspace::HWCLOCK,
    &userspace::LDCONFIG,
];

/// The finding with this id.
pub(crate) fn named(id: &str) -> Option<&'static Finding> {
    CATALOGUE.iter().copied().find(|finding| finding.cause.id == id)
}
