//! Configurations, line by line with the reasons.

vmeter_base::words! {
    /// What a kernel is built with.
    pub enum Config {
        /// Debian's configuration without modules: only what it builds into the kernel.
        Debian = "debian",
        /// Debian's, minus each option that the guest does not need and whose initcalls took over
        /// 1 ms in a measured boot.
        Custom = "custom",
        /// allnoconfig plus the options needed to boot, measure and shut down the guest.
        Minimal = "minimal",
    }
}

/// An option, its value, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Name, without `CONFIG_`.
    pub option: &'static str,
    /// `y`, `n`, a number, or a text in quotes.
    pub value: &'static str,
    /// Why it is so.
    pub why: &'static str,
}

/// An option with its value, as a line of a `.config`.
pub(super) fn setting(option: &str, value: &str) -> String {
    match value {
        "n" => format!("# CONFIG_{option} is not set\n"),
        value => format!("CONFIG_{option}={value}\n"),
    }
}

const fn line(option: &'static str, value: &'static str, why: &'static str) -> Line {
    Line { option, value, why }
}

/// A switch that is on.
const fn on(option: &'static str, why: &'static str) -> Line {
    line(option, "y", why)
}

/// What a minimal kernel has besides allnoconfig.
pub const MINIMAL: &[Line] = &[
    on("64BIT", "vmeter's init is an x86-64 program, and vmeter reads RAM of x86-64 kernels"),
    on("EXPERT", "Kconfig lets you switch off many options only with CONFIG_EXPERT"),
    on("SMP", "--smp"),
    on("HYPERVISOR_GUEST", "for PARAVIRT, KVM_GUEST and PVH"),
    on("PARAVIRT", "KVM's clock and spinlocks"),
    on("KVM_GUEST", "without KVM guest support, the guest calibrates its timers at boot"),
    on("PVH", "--machine pvh and microvm enter the kernel by PVH"),
    on("HIGH_RES_TIMERS", "init's sleeps need high-resolution timers to be exact"),
    on("NO_HZ_IDLE", "an idle guest costs its host nothing"),
    on("PRINTK", "the kernel's log is a source of the timeline"),
    on("PRINTK_TIME", "time stamps in the kernel's log"),
    on("BUG", "the kernel reports BUG() and WARN()"),
    on("MULTIUSER", "programs of distributions need users and groups"),
    on("BINFMT_ELF", "programs"),
    on("BINFMT_SCRIPT", "scripts in your own appliance"),
    on("BLK_DEV_INITRD", "the appliance is an initramfs"),
    on("RD_GZIP", "vmeter can pack the appliance with gzip"),
    on("RD_ZSTD", "vmeter can pack the appliance with zstd"),
    on("TTY", "the console"),
    on("UNIX98_PTYS", "shells in your own appliance need terminals"),
    on("SERIAL_8250", "the console's UART"),
    on("SERIAL_8250_CONSOLE", "the console on the UART"),
    on("HVC_DRIVER", "hvc0, the faster console"),
    on("VIRTIO_CONSOLE", "hvc0 is a virtio console"),
    on("POSIX_TIMERS", "init sleeps"),
    on("FUTEX", "programs with threads"),
    on("EPOLL", "udev"),
    on("SIGNALFD", "udev"),
    on("TIMERFD", "udev"),
    on("EVENTFD", "udev"),
    on("INOTIFY_USER", "init waits for the root device, and udev applies its rules to devices"),
    on("FHANDLE", "udev, systemd"),
    on("SHMEM", "devtmpfs as tmpfs"),
    on("AIO", "programs such as libguestfs"),
    on("ADVISE_SYSCALLS", "programs such as libguestfs"),
    on("FILE_LOCKING", "programs such as libguestfs"),
    on("PROC_FS", "vmeter's init reads cmdline and meminfo in /proc"),
    on("PROC_SYSCTL", "programs change kernel settings in /proc/sys"),
    on("SYSFS", "devices, module parameters, the mount point of tracefs"),
    on("TMPFS", "udev keeps its data in /run, a tmpfs"),
    on("DEVTMPFS", "device nodes without udev"),
    on("NET", "udev gets device events over netlink"),
    on("UNIX", "udev's processes talk over a Unix socket"),
    on("PCI", "every machine but microvm"),
    on("PCI_MSI", "virtio's interrupts"),
    on("PCIEPORTBUS", "--pcie-root-ports"),
    on("ACPI", "the routing of PCI interrupts, and the power-off"),
    on(
        "X86_PM_TIMER",
        "without this option, the kernel spends 0.1 s on calibrating the local APIC's timer, and \
            then disables the timer",
    ),
    on("BLOCK", "disks"),
    on("BLK_DEV", "virtio-blk"),
    on("VIRTIO_MENU", "virtio"),
    on("VIRTIO_PCI", "virtio devices on PCI"),
    on("VIRTIO_MMIO", "virtio devices of a microvm, which has no PCI"),
    on(
        "VIRTIO_MMIO_CMDLINE_DEVICES",
        "the kernel command line names virtio-mmio devices if there \
        is no ACPI",
    ),
    on("VIRTIO_BLK", "--root virtio-blk"),
    on("EXT4_FS", "vmeter's root disks have ext4"),
    on("SPARSEMEM_VMEMMAP", "for ZONE_DEVICE"),
    on("MEMORY_HOTPLUG", "for ZONE_DEVICE"),
    on("MIGRATION", "for MEMORY_HOTREMOVE"),
    on("MEMORY_HOTREMOVE", "for ZONE_DEVICE"),
    on("ZONE_DEVICE", "DAX needs a struct page for each page of the device"),
    on("LIBNVDIMM", "persistent memory"),
    on("BLK_DEV_PMEM", "persistent memory as a disk"),
    on("ACPI_NFIT", "ACPI describes an NVDIMM"),
    on("VIRTIO_PMEM", "--root dax"),
    on("DAX", "--root dax"),
    on("FS_DAX", "--root dax"),
    on("KALLSYMS", "to measure initcalls, vmeter needs the kernel's own symbols"),
    on("DEBUG_KERNEL", "for KALLSYMS_ALL"),
    on("KALLSYMS_ALL", "vmeter uses data symbols to find the kernel's log and trace in RAM"),
    on("FTRACE", "vmeter measures initcalls with tracepoints"),
    on(
        "ENABLE_DEFAULT_TRACERS",
        "tracepoints; left out is the function tracer, which slows the boot",
    ),
    on("BPF_SYSCALL", "for DEBUG_INFO_BTF"),
    on("DEBUG_INFO_DWARF4", "for DEBUG_INFO_BTF; the booted image has no DWARF"),
    on("DEBUG_INFO_BTF", "to read the kernel's structures in RAM, vmeter needs their types"),
];

/// What is changed of Debian's configuration to build it elsewhere, without modules.
pub const DEBIAN: &[Line] = &[
    line("SYSTEM_TRUSTED_KEYS", "\"\"", "Debian's certificates are not in the source package"),
    line(
        "MODULE_SIG_KEY",
        "\"certs/signing_key.pem\"",
        "Debian's signing key is not in the source package",
    ),
    line("BUILD_SALT", "\"\"", "Debian's value is the release of Debian's own kernel"),
    line(
        "LOCALVERSION_AUTO",
        "n",
        "the kernel's release contains the configuration's name and \
        hash",
    ),
    line("DEBUG_INFO_BTF", "y", "to read the kernel's structures in RAM, vmeter needs their types"),
    line("KALLSYMS_ALL", "y", "vmeter needs data symbols to find the kernel's log and trace"),
];

/// Initcalls that take long by an option of another's, and what a custom kernel sets it to.
pub(super) const INSTEAD: &[(&str, Line)] = &[
    (
        "crypto_algapi_init",
        on("CRYPTO_MANAGER_DISABLE_TESTS", "otherwise the kernel tests each algorithm at boot"),
    ),
    (
        "raid6_select_algo",
        line("RAID6_PQ_BENCHMARK", "n", "RAID 6 measures how fast its routines are"),
    ),
];

/// Options that a custom kernel keeps whatever their initcalls take, besides those of
/// [`MINIMAL`].
pub(super) const NEEDED: &[(&str, &str)] = &[
    ("MODULES", "this kernel loads modules, as the distribution's kernel does"),
    ("INET", "programs of distributions expect a network stack"),
    ("CGROUPS", "systemd"),
    ("SECCOMP", "systemd"),
    ("AUTOFS_FS", "systemd"),
    ("TRACING", "vmeter measures initcalls with tracepoints"),
    ("EVENT_TRACING", "vmeter measures initcalls with tracepoints"),
    ("PERF_EVENTS", "x86 selects it"),
    ("SERIAL_8250_PNP", "finds the console's UART"),
    ("PNP", "finds the console's UART"),
    ("RTC_CLASS", "the guest's time of day"),
    ("CRYPTO", "ext4's checksums"),
    ("CRC32", "ext4's checksums"),
    ("SWIOTLB", "64-bit kernels have it"),
    ("X86_64", "the architecture"),
];
