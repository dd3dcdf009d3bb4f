//! What the names of spans mean. Reports print the meanings of the names that they show, and
//! docs/VIEWS.md lists all of them, so that both say the same.

/// Names, and what each span is. The first row that fits a name counts.
#[rustfmt::skip]
pub const MEANINGS: &[(&str, &str)] = &[
    ("vmm:exec",            "the system call execve of the VMM"),
    ("vmm:wrapper",         "a program, such as a shell script, before it starts the VMM"),
    ("vmm:link",            "from the end of execve to the VMM's main(): dynamic linker and constructors"),
    ("vmm:ld.so",           "the dynamic linker"),
    ("vmm:constructors",    "constructors of the VMM and its libraries, before main()"),
    ("vmm:init",            "from the VMM's main() to the first instruction of a vCPU"),
    ("vmm:start",           "vmm:link and vmm:init, if no source shows when main() began"),
    ("vmm:wait-for-start",  "the VMM is ready and waits for the command that starts the guest"),
    ("vmm:exit",            "from the call of exit to the VMM's end: the host frees VMM memory"),
    ("vmm:load-state",      "restore: the VMM loads the states of its devices"),
    ("vmm:load-ram",        "restore: the VMM loads the guest's RAM"),
    ("vmm:load",            "restore: the VMM loads a file with device states and RAM"),
    ("vmm:resume",          "restore: from the end of the load to the guest's first instruction"),
    ("load *",              "restore: the VMM loads the state of this device"),
    ("guest:until-ready",   "restore: from the guest's first instruction to its first answer (--ready)"),
    ("bios:overhead",       "all of the firmware's time, except kernel:load"),
    ("bios:start",          "the firmware before its first log line"),
    ("bios:platform",       "SeaBIOS from its version line to the PCI scan: it relocates itself, and lists the files of fw_cfg"),
    ("bios:pci-probe",      "SeaBIOS looks for PCI buses and devices"),
    ("bios:pci-allocate",   "SeaBIOS assigns addresses to PCI devices"),
    ("bios:pci-init",       "SeaBIOS initialises PCI devices"),
    ("bios:cpus-and-tables", "SeaBIOS starts the other CPUs and copies the tables PIR, MPTABLE and SMBIOS"),
    ("bios:acpi",           "SeaBIOS reads the ACPI tables"),
    ("bios:vga",            "the VGA option ROM"),
    ("bios:devices",        "SeaBIOS looks for keyboards, disks and USB devices"),
    ("bios:option-roms",    "SeaBIOS or UEFI runs option ROMs other than VGA's"),
    ("bios:boot-menu-wait", "SeaBIOS or UEFI waits for a key for its boot menu"),
    ("bios:prepare-boot",   "SeaBIOS's last steps before it starts a boot loader or an option ROM"),
    ("bios:boot-failed",    "SeaBIOS after a failed attempt to boot"),
    ("bios:no-bootable-device", "the firmware found nothing to boot"),
    ("bios:network-boot",   "attempts to boot from the network"),
    ("bios:network-load",   "UEFI loads a file from the network"),
    ("bios:boot",           "SeaBIOS starts a boot loader or an option ROM"),
    ("bios:edk2-sec",       "EDK2's phase SEC"),
    ("bios:edk2-pei",       "EDK2's phase PEI"),
    ("bios:edk2-dxe",       "EDK2's phase DXE"),
    ("bios:edk2-bds",       "EDK2's phase BDS"),
    ("bios:edk2-boot-option", "EDK2 tries a boot option"),
    ("boot-loader",         "from the first instruction of a boot loader to that of the kernel image"),
    ("grub:*",              "a step that GRUB's output shows"),
    ("syslinux:*",          "a step that SYSLINUX's output shows"),
    ("systemd-boot:*",      "a step that systemd-boot's output shows"),
    ("ipxe:*",              "a step that iPXE's output shows"),
    ("efi-stub",            "the kernel's EFI stub"),
    ("hypervisor",          "a hypervisor in the guest, up to the kernel that it starts"),
    ("kernel:load",         "code in the guest (firmware or an option ROM) copies kernel and initrd into memory"),
    ("kernel:setup",        "the real-mode code of the kernel image"),
    ("kernel:decompress",   "the kernel image decompresses the kernel"),
    ("kernel:entry",        "from the kernel's first instruction to its first initcall"),
    ("kernel:initcalls-before-userspace", "from the first initcall to the start of init"),
    ("kernel:initcalls",    "the function driver_init() and all initcalls after it, if no source timed the initcalls"),
    ("kernel:between-initcalls", "gaps between initcalls"),
    ("kernel:after-initcalls", "from the last initcall to the start of init"),
    ("kernel:start_kernel", "the steps of start_kernel() that have no row of their own"),
    ("kernel:mitigations-and-alternatives", "the kernel selects CPU mitigations and patches its code for this CPU (apply_alternatives)"),
    ("kernel:apic-and-timer", "the kernel sets up the APICs and finds out how the timer interrupt arrives"),
    ("kernel:unpack-initrd", "the kernel waits for the worker that unpacks the initrd"),
    ("kernel:wait-for-root-device", "the kernel waits for the device of the root file system"),
    ("kernel:panic",        "the guest after a kernel panic"),
    ("kernel:*",            "from the start (or first log line) of this kernel function to the start (or first log line) of the next function"),
    ("initcall *",          "the kernel's function of this name, called by do_one_initcall()"),
    ("insmod *",            "a kernel module is loaded and initialised"),
    ("initrd",              "the programs of the initrd, before they switch to the root file system"),
    ("initrd:*",            "a step that the output of the initrd's scripts shows"),
    ("switch-root",         "from the initrd's last step to the init of the root file system"),
    ("userspace",           "programs that the guest runs"),
    ("guest",               "what the guest does, if vmeter sees only its console"),
    ("/init:exec",          "the kernel executes init's file"),
    ("/init:start",         "from init's exec to init's first action that a source saw"),
    ("/init:udev-overhead", "init's steps for udev: it starts udevd, triggers events, and waits for them"),
    ("/init:announce",      "vmeter's own init prints that it is ready"),
    ("/init:*",             "a step of init, between the start mark and end mark that init writes"),
    ("systemd:setup",       "systemd before it loads units"),
    ("systemd:load-units",  "systemd loads units and runs generators"),
    ("systemd:units",       "systemd starts units"),
    ("systemd:start-jobs",  "systemd's own work between two units that it starts"),
    ("systemd:stop-jobs",   "systemd's own work between two units that it stops"),
    ("systemd:restart-wait", "systemd waits before it starts a failed unit again"),
    ("unit *",              "systemd starts this unit"),
    ("stop *",              "systemd stops this unit"),
    ("exec *",              "the guest runs this program"),
    ("after: *",            "time after this console line, while no program of the tree runs"),
    ("lines from: *",       "programs print many console lines; the name contains the first of these lines"),
    ("wait-for-a-person*",  "the guest waits for a passphrase"),
    ("shutdown",            "from the first sign that the guest shuts down to the VMM's call of exit"),
    ("shutdown:guest",      "the guest shuts down, up to its power-off"),
    ("shutdown:vmm",        "from the guest's power-off to the VMM's call of exit"),
    ("shutdown:*",          "a step of the shutdown"),
    ("reboot*",             "the guest reboots"),
    ("kexec*",              "the guest starts another kernel by kexec"),
    ("host:no-cpu",         "the VMM was ready to run, but the host gave it no CPU"),
    ("host:vmm-stopped",    "a signal or a debugger had stopped the VMM"),
    ("launcher:page faults", "restore: vmeter reads pages for the VMM (userfaultfd)"),
    ("launcher:PUT *",      "restore: the VMM handles this request to its API"),
    ("launcher:after",      "from the VMM's end to the end of the program that started the VMM"),
    ("vmeter:observe",      "vmeter pauses the VMM (options that vmeter adds also cost time, but in other rows)"),
    ("unattributed",        "time that no source explains"),
];

/// What a span of this name is: the row of [`MEANINGS`] that fits it.
#[must_use]
pub fn meaning(name: &str) -> Option<&'static (&'static str, &'static str)> {
    MEANINGS.iter().find(|(pattern, _)| is_called(name, pattern))
}

/// True for a name that a pattern means: itself, or with one `*` for anything.
#[must_use]
pub fn is_called(name: &str, pattern: &str) -> bool {
    pattern.split_once('*').map_or(name == pattern, |(begin, end)| {
        name.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns::{Means, PATTERNS};

    #[test]
    fn every_name_of_the_patterns_has_a_meaning() {
        for pattern in PATTERNS {
            let (Means::Part(name) | Means::FirstPart(name) | Means::PartUntilNextLine(name, _)) =
                pattern.means
            else {
                continue;
            };
            assert!(meaning(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_row_hides_another() {
        for (at, (pattern, _)) in MEANINGS.iter().enumerate() {
            let example = pattern.replace('*', "x");
            let found = MEANINGS.iter().position(|row| Some(row) == meaning(&example));
            assert_eq!(found, Some(at), "{pattern}");
        }
    }
}
