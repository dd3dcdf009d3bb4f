//! What lines of text mean: a table, and nothing else.
//!
//! Every pattern is optional. A line that none matches says nothing, and a guest
//! that prints none of them only loses the boundaries they would have given. To
//! teach vmeter a new firmware or kernel message, add a line here.
//!
//! Firmware lines are those of SeaBIOS 1.14-1.16 (src/post.c, src/boot.c,
//! src/fw/pciinit.c, src/optionroms.c) and EDK2's debug builds, on port 0x402.
//! Kernel lines are those of Linux 5.4-6.12, from its log buffer or its console.
//! A line is printed when something begins, ends, or is half done, so a boundary
//! from a line is late or early by what lies between: that is `error_ns`.

use crate::anchors::Anchor;
use vmeter_model::Ns;

/// Which text a pattern is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The firmware's debug log.
    Firmware,
    /// The kernel's log, however it reached us; the stamp in front is taken off.
    Kernel,
}

/// What a matching line means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// A phase begins about here.
    Begins(Anchor, Ns),
    /// From here until the next part this goes on (a child of the phase it is in).
    Part(&'static str),
    /// As `Part`, but only the first such line of the run.
    FirstPart(&'static str),
    /// As `Part`, but the next line of any kind begins the second.
    PartUntilNextLine(&'static str, &'static str),
    /// The kernel panicked.
    Panic,
    /// The guest tells the machine to power off, halt or restart.
    PowerOff,
}

/// One line of the table.
pub(crate) struct Pattern {
    /// Which text.
    pub on: On,
    /// Regular expression, searched for.
    pub regex: &'static str,
    /// What a match means.
    pub means: Means,
}

const MS: Ns = 1_000_000;

const fn firmware(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Firmware, regex, means }
}

const fn kernel(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Kernel, regex, means }
}

use Means::{Begins, FirstPart, Panic, Part, PartUntilNextLine, PowerOff};

/// The table. Of several patterns that match a line, each has its say.
#[rustfmt::skip]
pub(crate) const PATTERNS: &[Pattern] = &[
    // SeaBIOS, in the order of its POST.
    firmware(r"^SeaBIOS \(version ",                     FirstPart("bios:platform")),
    firmware(r"^=== PCI bus & bridge init ===",          Part("bios:pci-probe")),
    firmware(r"^=== PCI new allocation pass #1 ===",     Part("bios:pci-allocate")),
    firmware(r"^PCI: init bdf=",                         Part("bios:pci-init")),
    firmware(r"^(Found \d+ cpu\(s\)|Copying (PIR|MPTABLE|SMBIOS))", Part("bios:cpus-and-tables")),
    firmware(r"^(table\([0-9a-f]+\)=|ACPI: parse DSDT)", Part("bios:acpi")),
    firmware(r"^(Scan for VGA option rom|Start SeaVGABIOS|Turning on vga text mode console)", Part("bios:vga")),
    firmware(r"^(AHCI controller|ATA controller|PS2 keyboard|(U|O|E|X)HCI init|PCI: XHCI at|found virtio-|Found NVMe|Found \d+ (lpt|serial) ports|Searching bootorder for: /pci)", FirstPart("bios:devices")),
    firmware(r"^Scan for option roms",                   Part("bios:option-roms")),
    firmware(r"^Press .* for boot menu",                 PartUntilNextLine("bios:boot-menu-wait", "bios:prepare-boot")),
    firmware(r"^(Select boot device|\d+\. )",            PartUntilNextLine("bios:boot-menu-wait", "bios:prepare-boot")),
    firmware(r"^(Space available for UMB|Returned \d+ bytes of ZoneHigh|e820 map has)", Part("bios:prepare-boot")),
    firmware(r"^(enter handle_1[89]:|Booting from )",    Part("bios:boot")),
    firmware(r"^Boot failed",                            Part("bios:boot-failed")),
    firmware(r"^No bootable device",                     Part("bios:no-bootable-device")),
    // EDK2 (OVMF, debug build).
    firmware(r"^SecCoreStartupWithStack",                Part("bios:edk2-sec")),
    firmware(r"^(Loading PEIM|PlatformPei)",             FirstPart("bios:edk2-pei")),
    firmware(r"^(DXE IPL Entry|Loading DXE CORE)",       FirstPart("bios:edk2-dxe")),
    firmware(r"^\[Bds\]",                                FirstPart("bios:edk2-bds")),

    // Linux: the boundaries of phases.
    kernel(r"^Linux version ",                           Begins(Anchor::KernelEntry, 5 * MS)),
    kernel(r"^smp: Bringing up secondary CPUs",          Begins(Anchor::Initcalls, 50 * MS)),
    kernel(r"^devtmpfs: initialized",                    Begins(Anchor::Initcalls, 200 * MS)),
    kernel(r"^Run /\S+ as init process",                 Begins(Anchor::Userspace, 2 * MS)),
    kernel(r"^systemd\[1\]: ",                           Begins(Anchor::Userspace, 500 * MS)),
    kernel(r"^(ACPI: PM: |ACPI: )?Preparing to enter system sleep state S5", Begins(Anchor::Shutdown, 100 * MS)),
    kernel(r"^systemd-shutdown\[1\]: ",                  Begins(Anchor::Shutdown, 500 * MS)),
    kernel(r"^(\[[^\]]*\] )?(The system is going down|Requesting system (poweroff|halt|reboot))", Begins(Anchor::Shutdown, 100 * MS)),
    kernel(r"^Kernel panic - not syncing",               Panic),
    kernel(r"^reboot: (Power down|System halted|Restarting system|machine restart)", PowerOff),

    // Linux: parts of start_kernel() and of what follows it.
    kernel(r"^Linux version ",                           Part("kernel:setup_arch")),
    kernel(r"^(setup_percpu:|percpu: Embedded)",         FirstPart("kernel:setup_per_cpu_areas")),
    kernel(r"^(Built \d+ zonelists|Dentry cache hash table|mem auto-init)", FirstPart("kernel:mm_init")),
    kernel(r"^ftrace: allocating",                       Part("kernel:ftrace_init")),
    kernel(r"^(Dynamic Preempt:|rcu: (Preemptible )?[Hh]ierarchical RCU)", FirstPart("kernel:rcu_init")),
    kernel(r"^NR_IRQS:",                                 Part("kernel:init_IRQ")),
    kernel(r"^Console: colour",                          Part("kernel:console_init")),
    kernel(r"^ACPI: Core revision",                      Part("kernel:acpi_early_init")),
    kernel(r"^(\.\.TIMER:|APIC: Switch to symmetric)",   FirstPart("kernel:apic-and-timer")),
    kernel(r"^Calibrating delay loop",                   Part("kernel:calibrate_delay")),
    kernel(r"^(Spectre V1|x86/fpu:)",                    FirstPart("kernel:mitigations-and-alternatives")),
    kernel(r"^Freeing SMP alternatives",                 Part("kernel:rest_init")),
    kernel(r"^smp: Bringing up secondary CPUs",          Part("kernel:smp_init")),
    kernel(r"^smpboot: Total of \d+ processors activated", Part("kernel:sched_init_smp")),
    kernel(r"^devtmpfs: initialized",                    Part("kernel:driver_init")),
    kernel(r"^Freeing unused (decrypted|kernel image)",  FirstPart("kernel:free_initmem")),
    kernel(r"^Write protecting the kernel read-only data", Part("kernel:mark_readonly")),
    kernel(r"^Waiting for root device",                  Part("kernel:wait-for-root-device")),
];
