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
    FEATURE_DETECTION = "feature-detection", "the launcher asks the VMM for its features at \
        every launch";
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
    SYSLINUX_PROMPT = "syslinux-prompt", "SYSLINUX waits at its prompt until the prompt times \
        out";
    SYSTEMD_BOOT_MENU = "systemd-boot-menu", "systemd-boot's menu waits for its time-out";
    KERNEL_ENTRY = "kernel-entry", "entering the kernel";
    UART_COST = "uart-cost", "characters through an emulated UART";
    CONSOLE_LOG = "console-log", "the kernel prints its log on a console";
    FTRACE_INIT = "ftrace-init", "initialisation of ftrace";
    CALIBRATION = "calibration", "the kernel calibrates its delay loop";
    LOCK_PREFIXES = "lock-prefixes", "the kernel patches the LOCK prefixes of its code";
    ACPI_OFF = "acpi-off", "ACPI";
    VCPUS = "vcpus", "several vCPUs";
    TSC_RELIABLE = "tsc-reliable", "comparing the TSCs of vCPUs";
    PCI_PROBE = "pci-probe", "PCI probing";
    PARALLEL_PCI_PROBE = "parallel-pci-probe", "drivers probe their devices one after another";
    SERIAL8250_INIT = "serial8250-init", "probing of serial ports that are not there";
    CRYPTO_TESTS = "crypto-tests", "self-tests of cryptography";
    INITCALLS = "initcalls", "all initcalls before user space";
    CUSTOM_KERNEL = "custom-kernel", "a distribution's kernel, which has slow features that the \
        boot does not need";
    MINIMAL_KERNEL = "minimal-kernel", "a kernel with features that the boot does not need";
    UNPACK_INITRD = "unpack-initrd", "the kernel unpacks its initrd";
    INITRAMFS_MODULES = "initramfs-modules", "modules that are in the initrd only because \
        others need them";
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
    ACCELERATOR = "accelerator", "the guest runs by translation (TCG), although KVM could run it";
    DEFAULT_DEVICES = "default-devices", "devices that QEMU adds by itself";
    DISPLAY_CARD = "display-card", "a graphics card without a display";
    DEFAULT_NIC = "default-nic", "the network card that QEMU adds by itself";
    NIC_ROMS = "nic-roms", "option ROMs of network cards, for a boot over the network";
    CHIPSET_PARTS = "chipset-parts", "a SATA controller and an SMBus without anything on them";
    HPET_DEVICE = "hpet-device", "a high precision event timer";
    I8042_DEVICE = "i8042-device", "a controller of keyboard and mouse";
    SMM = "smm", "the firmware prepares system management mode";
    BOARD = "board", "a machine type with PCI Express where one with conventional PCI would do";
    ROOT_PORTS = "root-ports", "PCIe root ports without a device";
    CPU_HOST = "cpu-host", "a CPU model without the host's TSC deadline timer";
    CPU_MODEL = "cpu-model", "a CPU model whose features the translator has to emulate";
    DISK_CACHE = "disk-cache", "the guest's flushes wait for the host's disk";
    TIMER_CHECK = "timer-check", "the kernel tests the timer behind its IO-APIC";
    PEER_BUSES = "pci-peer-buses", "a search for PCI buses that no bridge leads to";
    EARLY_QUIRKS = "pci-early-quirks", "an early look for chipsets with faults";
    PORT_SERVICES = "port-services", "services of PCIe root ports";
    IOMMU_PROBE = "iommu-probe", "a search for an IOMMU";
    BOUNCE_BUFFERS = "bounce-buffers", "memory reserved for devices that cannot address all of \
        the guest's RAM";
    I8042_PROBE = "i8042-probe", "the kernel probes keyboard and mouse";
    USB_CORE = "usb-core", "a USB core without a controller";
    RAID_AUTODETECT = "raid-autodetect", "a wait for all disks, to find RAID arrays of an old \
        format";
    HIBERNATION_IMAGE = "hibernation-image", "a search for an image to resume from";
    ROOT_DELAY = "root-delay", "a fixed wait before the root is mounted";
    EARLY_CONSOLE = "early-console", "an early console that polls a UART for each byte";
    LOCKUP_DETECTOR = "lockup-detector", "the kernel's lockup detectors";
    AUDIT = "audit", "the audit subsystem";
    SECURITY_MODULES = "security-modules", "AppArmor, SELinux and TOMOYO";
    ZEROING = "zeroing", "the kernel zeroes each allocation";
    MITIGATIONS = "mitigations", "the kernel patches itself against speculative attacks";
    KASLR = "kaslr", "the kernel moves itself to a random address";
    RANDOM_SEED = "random-seed", "the random generator waits for a source that it trusts";
    PRESSURE = "pressure-accounting", "accounting of pressure (PSI)";
    DEFERRED_PROBE = "deferred-probe", "the kernel waits for device suppliers that never appear";
    FSCK = "fsck", "file systems are checked at boot";
    IPV6 = "ipv6", "IPv6 where nothing uses it";
    EDD = "edd", "the kernel asks the BIOS which disks there are";
    GRACE_PERIODS = "grace-periods", "user space waits for RCU";
    KERNEL_OPTIONS = "kernel-options", "initcalls of kernel options that the guest does not need";
    KERNEL_MINIMAL = "kernel-minimal", "a distribution's kernel where a minimal one would do";
    TRACEFS = "tracefs", "the kernel makes thousands of files for tracers";
    BPF_FUNCTIONS = "bpf-functions", "the kernel parses its types to offer functions to BPF";
    KDF_TEST = "kdf-test", "the self-test of a key derivation function";
    SLAB_FILES = "slab-files", "a folder of files in /sys/kernel/slab for each slab cache";
    CMOS_CLOCK = "cmos-clock", "the driver of the CMOS clock";
    CERTIFICATES = "certificates", "the kernel loads its own certificates";
    MODULE_PROBES = "module-probes", "modules probe their devices one after another";
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
