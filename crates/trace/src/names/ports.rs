//! What an x86 PC has at an I/O port.
//!
//! The fixed assignments of the PC, and QEMU's own: fw_cfg, isa-debugcon, the
//! ACPI blocks of its i440fx (0x600, 0xb000) and q35 (0x600) machines.

const RANGES: &[(u32, u32, &str)] = &[
    (0x00, 0x0f, "DMA 1"),
    (0x10, 0x10, "debug exit"),
    (0x20, 0x21, "PIC 1"),
    (0x40, 0x43, "PIT"),
    (0x60, 0x60, "keyboard data"),
    (0x61, 0x61, "PC speaker"),
    (0x64, 0x64, "keyboard status"),
    (0x70, 0x71, "CMOS/RTC"),
    (0x80, 0x80, "POST code / delay"),
    (0x81, 0x8f, "DMA page"),
    (0x92, 0x92, "fast A20"),
    (0xa0, 0xa1, "PIC 2"),
    (0xb2, 0xb3, "APM (SMI)"),
    (0xc0, 0xdf, "DMA 2"),
    (0xe9, 0xe9, "debug console"),
    (0xf0, 0xf4, "FPU / debug exit"),
    (0x170, 0x170, "IDE 2 data"),
    (0x171, 0x177, "IDE 2"),
    (0x1ce, 0x1d0, "VBE"),
    (0x1f0, 0x1f0, "IDE 1 data"),
    (0x1f1, 0x1f7, "IDE 1"),
    (0x278, 0x27a, "parallel 2"),
    (0x2e8, 0x2ef, "serial 4"),
    (0x2f8, 0x2ff, "serial 2"),
    (0x376, 0x376, "IDE 2 control"),
    (0x378, 0x37a, "parallel 1"),
    (0x3b0, 0x3df, "VGA"),
    (0x3e8, 0x3ef, "serial 3"),
    (0x3f0, 0x3f5, "floppy"),
    (0x3f6, 0x3f6, "IDE 1 control"),
    (0x3f7, 0x3f7, "floppy"),
    (0x3f8, 0x3ff, "serial 1"),
    (0x402, 0x402, "firmware debug log"),
    (0x4d0, 0x4d1, "PIC edge/level"),
    (0x510, 0x51b, "fw_cfg"),
    (0x600, 0x607, "ACPI PM"),
    (0x608, 0x60b, "ACPI PM timer"),
    (0x620, 0x62f, "ACPI GPE"),
    (0x700, 0x73f, "SMBus"),
    (0xae00, 0xaeff, "ACPI hotplug"),
    (0xafe0, 0xafe3, "ACPI GPE"),
    (0xb000, 0xb007, "ACPI PM"),
    (0xb008, 0xb00b, "ACPI PM timer"),
    (0xb100, 0xb13f, "SMBus"),
    (0xcf8, 0xcfb, "PCI config address"),
    (0xcfc, 0xcff, "PCI config data"),
    (0x5658, 0x5658, "VMware backdoor"),
];

/// What is usually at a port; empty if it is not one of the PC's fixed ones.
pub fn port(port: u32) -> &'static str {
    RANGES.iter().find(|r| (r.0..=r.1).contains(&port)).map_or("", |r| r.2)
}

#[cfg(test)]
mod tests {
    use super::port;

    #[test]
    fn the_pcs_ports_have_names() {
        assert_eq!(port(0x1f0), "IDE 1 data");
        assert_eq!(port(0xcfe), "PCI config data");
        assert_eq!(port(0x3f8), "serial 1");
        assert_eq!(port(0xb008), "ACPI PM timer");
        assert_eq!(port(0xc000), "");
    }
}
