//! What lines of text mean: a table, and nothing else.
//!
//! Every pattern is optional. A line that none matches says nothing, and a guest
//! that prints none of them only loses the boundaries they would have given. To
//! teach vmeter a new firmware or kernel message, add a line here.
//!
//! Firmware lines are those of SeaBIOS 1.14-1.16 (src/post.c, src/boot.c,
//! src/fw/pciinit.c, src/optionroms.c) and EDK2's debug builds, on port 0x402.
//! Kernel lines are those of Linux 5.4-6.12, from its log buffer or its console.
//! Boot loaders' lines are those of GRUB 2.02-2.12 (with the entries that its `grub-mkconfig`
//! writes), systemd-boot, syslinux 6 and its kin, iPXE 1.x, EDK2's boot manager and Linux's
//! EFI stub and real-mode code (arch/x86/boot/edd.c), on the console.
//! A line is printed when something begins, ends, or is half done, so a boundary
//! from a line is late or early by what lies between: that is `error_ns`.

use crate::anchors::Anchor;
use vmeter_model::Ns;

/// Which text a pattern is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The firmware's debug log.
    Firmware,
    /// What the console shows before any line of a kernel: firmware and boot loader.
    Loader,
    /// The kernel's log, however it reached us; the stamp in front is taken off.
    Kernel,
}

/// What a matching line means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// A phase begins about here.
    Begins(Anchor, Ns),
    /// As `Begins`, but the last of such lines counts: the others were tried in vain.
    BeginsLast(Anchor, Ns),
    /// From here until the next part this goes on (a child of the phase it is in).
    Part(&'static str),
    /// As `Part`, but only the first such line of the run.
    FirstPart(&'static str),
    /// As `Part`, but the next line of any kind begins the second.
    PartUntilNextLine(&'static str, &'static str),
    /// Firmware was still at work here.
    Firmware,
    /// The kernel panicked.
    Panic,
    /// Init begins to end everything.
    GoesDown,
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
    /// Who says it.
    pub by: Says,
}

/// Who says what a pattern is for. Any program can print what another would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// The kernel, in its log, which stamps its lines.
    Kernel,
    /// A program, through the kernel's log.
    Logger,
    /// Anything that writes to the text.
    Any,
}

const MS: Ns = 1_000_000;

const fn firmware(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Firmware, regex, means, by: Says::Any }
}

const fn kernel(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Kernel, regex, means, by: Says::Kernel }
}

/// What programs print by the kernel's log, each line with the program's name.
const fn logger(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Kernel, regex, means, by: Says::Logger }
}

/// What programs print on the console, or log.
const fn program(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Kernel, regex, means, by: Says::Any }
}

const fn loader(regex: &'static str, means: Means) -> Pattern {
    Pattern { on: On::Loader, regex, means, by: Says::Any }
}

use Means::{
    Begins, BeginsLast, Firmware, FirstPart, GoesDown, Panic, Part, PartUntilNextLine, PowerOff,
};

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
    firmware(r"^Booting from 0000:7c00",                 BeginsLast(Anchor::Loader, MS)),
    // EDK2 (OVMF, debug build).
    firmware(r"^SecCoreStartupWithStack",                Part("bios:edk2-sec")),
    firmware(r"^(Loading PEIM|PlatformPei)",             FirstPart("bios:edk2-pei")),
    firmware(r"^(DXE IPL Entry|Loading DXE CORE)",       FirstPart("bios:edk2-dxe")),
    firmware(r"^\[Bds\]",                                FirstPart("bios:edk2-bds")),

    // What SeaBIOS shows on the console of a machine without a display.
    loader(r"^(SeaBIOS \(version |Booting from |Boot failed|No bootable device)", Firmware),
    // EDK2's boot manager (BdsDxe), which every build shows, and option ROMs.
    // It tried an option in vain, and goes on to the next; when BDS began no line says.
    loader(r"^BdsDxe: (failed to (load|start)|loading) Boot", Part("bios:edk2-boot-option")),
    loader(r"^(iPXE \(https?:|Press Ctrl-B to configure iPXE)", Part("bios:option-roms")),
    // What a ROM boots is a loader's: rules/network.rs tells it from what it tried in vain.
    loader(r"^(>>Start (PXE|HTTP)|PXE-E|iPXE (\(PCI .*\) )?starting execution|iPXE \d)", Part("bios:network-boot")),
    loader(r"^BdsDxe: starting Boot",                    BeginsLast(Anchor::Loader, 5 * MS)),
    // Boot loaders. A phase's first line comes when the loader has read itself.
    loader(r"^GRUB loading",                             Begins(Anchor::Loader, 20 * MS)),
    loader(r"^Welcome to GRUB!",                         Begins(Anchor::Loader, 1000 * MS)),
    loader(r"^(SYSLINUX|EXTLINUX|ISOLINUX|PXELINUX) \d",   Begins(Anchor::Loader, 200 * MS)),
    loader(r"^GRUB loading",                             FirstPart("grub:core")),
    loader(r"^Welcome to GRUB!",                         FirstPart("grub:start")),
    loader(r"GNU GRUB +version",                         FirstPart("grub:menu")),
    loader(r"highlighted entry will be executed automatically in", FirstPart("grub:timeout")),
    loader(r"^(Minimal BASH-like|grub(-rescue)?> ?$|grub rescue> ?$)", FirstPart("grub:prompt")),
    loader(r"^ *Booting (`|a command list)",              FirstPart("grub:boot-entry")),
    loader(r"^Press any key to continue",                Part("grub:wait-for-a-key")),
    loader(r"^Loading Linux ",                           FirstPart("grub:load-kernel")),
    loader(r"^Loading initial ramdisk",                  FirstPart("grub:load-initrd")),
    loader(r"^(SYSLINUX|EXTLINUX|ISOLINUX|PXELINUX) \d",   FirstPart("syslinux:start")),
    // Twice where the firmware shows the screen on the same serial line.
    loader(r"^(boot: ?)+ *$",                            FirstPart("syslinux:prompt")),
    loader(r"^Loading \S+\.\.\.",                       FirstPart("syslinux:load")),
    loader(r"^Boot in \d+ s",                            FirstPart("systemd-boot:menu")),
    loader(r"^iPXE ((\(PCI .*\) )?starting execution|initialising devices|\d)", Part("ipxe:start")),
    loader(r"^Press Ctrl-B for the iPXE command line",   Part("ipxe:prompt")),
    // It is written over the prompt, or stands on a line of its own.
    loader(r"net\d+: ([0-9a-f]{2}:){5}[0-9a-f]{2} using ", Part("ipxe:network")),
    loader(r"^(Configuring|Waiting for link-up on) \(?net", Part("ipxe:network")),
    // A script's may have no scheme; rules/loader.rs knows whether iPXE is there at all.
    loader(r"^\S+\.\.\. *(\d+%|ok\b)",                   Part("ipxe:download")),
    loader(r"^EFI stub: ",                               FirstPart("efi-stub")),

    // Linux's real-mode code, entered by a BIOS's loader of the old kind and by QEMU's -kernel.
    loader(r"^Probing EDD",                              Begins(Anchor::KernelFirst, 50 * MS)),

    // Linux: the boundaries of phases.
    kernel(r"^Linux version ",                           Begins(Anchor::KernelEntry, 5 * MS)),
    kernel(r"^smp: Bringing up secondary CPUs",          Begins(Anchor::Initcalls, 50 * MS)),
    kernel(r"^devtmpfs: initialized",                    Begins(Anchor::Initcalls, 200 * MS)),
    kernel(r"^Run /\S+ as init process",                 Begins(Anchor::Userspace, 2 * MS)),
    logger(r"^systemd\[1\]: ",                           Begins(Anchor::Userspace, 500 * MS)),
    kernel(r"^(ACPI: PM: |ACPI: )?Preparing to enter system sleep state S5", Begins(Anchor::Shutdown, 100 * MS)),
    logger(r"^systemd-shutdown\[1\]: ",                  Begins(Anchor::Shutdown, 500 * MS)),
    program(r"^(\[[^\]]*\] )?Requesting system (poweroff|halt|reboot)", Begins(Anchor::Shutdown, 100 * MS)),
    kernel(r"^Kernel panic - not syncing",               Panic),
    kernel(r"^reboot: (Power down|System halted|Restarting system|machine restart)", PowerOff),

    // Initrds: initramfs-tools' scripts, dracut's services.
    program(r"^Loading, please wait\.\.\.",                FirstPart("initrd:start")),
    program(r"^Starting (systemd-udevd version|version \d)", FirstPart("initrd:udev")),
    program(r"^Begin: Loading essential drivers",         FirstPart("initrd:load-drivers")),
    program(r"^Begin: Running /scripts/init-premount",    FirstPart("initrd:init-premount")),
    program(r"^Begin: Mounting root file system",         FirstPart("initrd:mount-root")),
    program(r"^Begin: Waiting for (root file system|.*suspend/resume)", FirstPart("initrd:wait-for-device")),
    program(r"^Begin: Running /scripts/local-bottom",     FirstPart("initrd:local-bottom")),
    program(r"^Begin: Running /scripts/init-bottom",      FirstPart("initrd:init-bottom")),
    program(r"^dracut-cmdline\[",                         FirstPart("initrd:dracut-cmdline")),
    program(r"^dracut-initqueue\[",                       FirstPart("initrd:dracut-initqueue")),
    logger(r"^systemd\[1\]: Running in initrd",           FirstPart("initrd:systemd")),
    logger(r"^systemd\[1\]: Queued start job for default target (initrd|Initrd)", FirstPart("initrd:units")),
    logger(r"^(systemd\[1\]|dracut): Switching root",      Part("initrd:end")),
    program(r"^ *(systemd\[1\]: )?Starting (initrd-switch-root\.service|Switch Root)", Part("initrd:end")),
    // systemd, of the root file system.
    logger(r"^systemd\[1\]: systemd \d.* running in system mode", Part("systemd:setup")),
    program(r"^Welcome to .*!$",                        Part("systemd:load-units")),
    logger(r"^systemd\[1\]: Hostname set to ",             Part("systemd:load-units")),
    logger(r"^systemd\[1\]: Queued start job for default target ([^iI]|[iI][^n])", FirstPart("systemd:units")),

    // Going down: busybox, sysvinit, systemd by its word to all, runit, OpenRC; then by whom
    // the rest is ended. The units that systemd stops before are in rules/units.rs.
    program(r"^(\[[^\]]*\] )?The system (is going down|will (power off|reboot|halt) now)", GoesDown),
    program(r"^INIT: (Switching to|Entering) runlevel: [06]",  GoesDown),
    program(r"^- runit: (leave stage: .*/2|enter stage: .*/3)$", GoesDown),
    program(r"^( \* )?(Shutting down|Stopping) (the )?(runlevel|services)", GoesDown),
    program(r"(Sent SIGTERM to all|Sending SIGTERM to remaining) processes", Part("shutdown:sigterm")),
    program(r"(Sent SIGKILL to all|Sending SIGKILL to remaining) processes", Part("shutdown:sigkill")),
    logger(r"^systemd-shutdown\[1\]: Unmounting file systems", Part("shutdown:unmount")),
    logger(r"^systemd-shutdown\[1\]: Syncing filesystems",     Part("shutdown:sync")),

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
    // What follows a calibration that was left out is the rest of start_kernel().
    kernel(r"^Calibrating delay loop \(skipped\)",       Part("kernel:start_kernel")),
    kernel(r"^Calibrating delay loop\.\.\.",             Part("kernel:calibrate_delay")),
    kernel(r"^(Spectre V1|x86/fpu:)",                    FirstPart("kernel:mitigations-and-alternatives")),
    // The second is rest_init's, or what comes before: rules/kernel.rs tells by their order.
    kernel(r"^Mount-cache hash table entries",           Part("kernel:start_kernel")),
    kernel(r"^Freeing SMP alternatives",                 Part("kernel:rest_init")),
    kernel(r"^smpboot: CPU0: ",                          Part("kernel:rest_init")),
    kernel(r"^smp: Bringing up secondary CPUs",          Part("kernel:smp_init")),
    kernel(r"^smpboot: Total of \d+ processors activated", Part("kernel:sched_init_smp")),
    kernel(r"^devtmpfs: initialized",                    Part("kernel:driver_init")),
    kernel(r"^Freeing unused (decrypted|kernel image)",  FirstPart("kernel:free_initmem")),
    kernel(r"^Write protecting the kernel read-only data", Part("kernel:mark_readonly")),
    kernel(r"^Waiting for root device",                  Part("kernel:wait-for-root-device")),
];
