//! The names of the known causes of a slow boot. A cause has one id and one title, here, whoever
//! speaks of it: a timeline that shows it (`causes`), the screen that says what to try, and
//! `vmeter findings`, which measures it by a pair of machines.

/// A known cause's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// As it is typed and exported.
    pub id: &'static str,
    /// What it is, in a few words.
    pub title: &'static str,
}

macro_rules! causes {
    ($($name:ident = $id:literal, $title:literal;)*) => {
        $(
            #[doc = $title]
            pub const $name: Named = Named { id: $id, title: $title };
        )*
        /// All of them, in the order in which a boot meets them.
        pub const ALL: &[Named] = &[$($name),*];
    };
}

causes! {
    VMM_LINK_LOADING = "vmm-link-loading", "link-loading of the VMM";
    FEATURE_DETECTION = "feature-detection", "asking the VMM for its features at every launch";
    MONITOR_WAIT = "monitor-wait", "waiting for the VMM's monitor";
    FW_CFG_DMA = "fw-cfg-dma", "kernel loaded by port I/O, not by fw_cfg's DMA";
    SGABIOS = "sgabios", "the BIOS's screen on a serial console";
    BIOS_FAST = "bios-fast", "parts of SeaBIOS that are not used";
    SMALL_FIRMWARE = "small-firmware", "SeaBIOS where a small firmware would do";
    FIRMWARE_PCI_PROBE = "firmware-pci-probe", "disks that the firmware will never boot from";
    FIRMWARE_MENU = "firmware-menu", "the firmware waits for the key of its boot menu";
    OPTION_ROMS = "option-roms", "option ROMs run, or the firmware boots over the network";
    GRUB_MENU = "grub-menu", "GRUB's menu waits for its time-out";
    GRUB_KEY = "grub-key", "GRUB waits for a key after an error";
    GRUB_LOAD = "grub-load", "GRUB reads kernel and initrd by the firmware's disk calls";
    IPXE_PROMPT = "ipxe-prompt", "iPXE waits for its key Ctrl-B";
    SYSLINUX_PROMPT = "syslinux-prompt", "SYSLINUX waits at its prompt for its time-out";
    SYSTEMD_BOOT_MENU = "systemd-boot-menu", "systemd-boot's menu waits for its time-out";
    KERNEL_ENTRY = "kernel-entry", "entering the kernel";
    UART_COST = "uart-cost", "characters through an emulated UART";
    CONSOLE_LOG = "console-log", "the kernel prints its log on a console";
    FTRACE_INIT = "ftrace-init", "initialisation of ftrace";
    CALIBRATION = "calibration", "the kernel calibrates its delay loop";
    ACPI_OFF = "acpi-off", "ACPI";
    VCPUS = "vcpus", "several vCPUs";
    TSC_RELIABLE = "tsc-reliable", "comparing the TSCs of vCPUs";
    PCI_PROBE = "pci-probe", "PCI probing";
    PARALLEL_PCI_PROBE = "parallel-pci-probe", "drivers probed one after another";
    SERIAL8250_INIT = "serial8250-init", "probing of serial ports that are not there";
    CRYPTO_TESTS = "crypto-tests", "self-tests of cryptography";
    INITCALLS = "initcalls", "all initcalls before user space";
    CUSTOM_KERNEL = "custom-kernel", "a distribution's kernel, less what takes long and is not needed";
    MINIMAL_KERNEL = "minimal-kernel", "a kernel of nothing but what is needed";
    UNPACK_INITRD = "unpack-initrd", "the kernel unpacks its initrd";
    INITRAMFS_MODULES = "initramfs-modules", "modules that only came along by dependency";
    INITRAMFS_LIBC = "initramfs-libc", "a large C library for small programs";
    INITRAMFS_STRIP = "initramfs-strip", "modules with debugging sections";
    VIRTIO_PCI = "virtio-pci", "insmod virtio_pci";
    LUKS_KEY = "luks-key", "cryptsetup derives the key of an encrypted volume";
    MISSING_DEVICE = "missing-device", "the boot waits for a device that never comes";
    UDEV_SETTLE = "udev-settle", "the boot waits for udev to settle";
    NETWORK = "network", "the boot waits for the network";
    E2SCRUB = "e2scrub", "e2scrub_reap clears up after scrubs of LVM volumes";
    DAX = "dax", "a root on a virtual disk, not on DAX";
    HWCLOCK = "hwclock", "hwclock at boot";
    LDCONFIG = "ldconfig", "ldconfig at boot";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_one_name() {
        for (index, cause) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.id != cause.id), "{}", cause.id);
            assert!(!cause.title.is_empty());
        }
    }
}
