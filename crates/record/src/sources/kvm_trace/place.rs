//! Where firmware, decompressor and kernel meet is known from where the guest was at
//! its exits. The first exit has it at the reset vector. A bzImage is entered at
//! 1 MiB by code below 1 MiB (Documentation/arch/x86/boot.rst), after the last
//! access to fw_cfg. The kernel proper begins with CPUID and control registers, in
//! the first pages of its image and at physical addresses, and goes on in the upper
//! half of the address space (arch/x86/kernel/head_64.S). Each moment lies between
//! two exits, and the time between them is its error.

/// Real mode, and BIOS code, end here; a bzImage's 32-bit entry is here.
const MIB: u64 = 1 << 20;
/// Where an uncompressed kernel is loaded and entered (`CONFIG_PHYSICAL_START`).
pub const KERNEL_LOAD: u64 = 16 << 20;
/// An entry is not beyond the first 256 MiB.
const ENTRY_END: u64 = 256 << 20;
/// Neither firmware nor a kernel is entered beyond: who first exits there, a program of the
/// guest's or its kernel, ran before.
const BOOTS_BELOW: u64 = 4 << 30;
/// First address of the upper half.
const UPPER_HALF: u64 = 1 << 63;
/// A kernel image begins at a multiple of this (`CONFIG_PHYSICAL_ALIGN`), and its
/// entry code with it.
const ALIGN: u64 = 2 << 20;
const HEAD: u64 = 64 << 10;

/// The entry of an uncompressed kernel.
pub const ENTRY_64: &str = "startup_64";
/// That of a bzImage's setup code, in its segment (Documentation/arch/x86/boot.rst), and
/// where an exit of its first instructions has it.
const SETUP: std::ops::Range<u64> = 0x200..0x400;

/// A trace's stamp.
pub type Stamp = u64;

/// A moment between two exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between {
    /// The last exit before it.
    pub after: Stamp,
    /// The first exit after it.
    pub before: Stamp,
}

/// Where the first vCPU is, from exit to exit.
#[derive(Debug, Default)]
pub struct Place {
    /// The first vCPU's thread.
    pub thread: Option<i32>,
    previous: Option<(Stamp, u64)>,
    /// Where the first exit was.
    first: Option<u64>,
    /// True once firmware asked the VMM for something (QEMU's fw_cfg).
    firmware: bool,
    /// Entry of a bzImage (or of an uncompressed kernel), since the last fw_cfg access.
    pub image: Option<(u64, Between)>,
    /// The run of exits in the first pages of one image, by the image's place.
    head: Option<(u64, Between)>,
    /// The kernel proper.
    pub kernel: Option<Between>,
}

impl Place {
    /// True if the guest's kernel ran before this VMM did.
    pub fn was_restored(&self) -> bool {
        self.first.is_some_and(|rip| rip >= BOOTS_BELOW)
    }

    /// The symbol that a VMM entered which has no firmware.
    pub fn entered(&self) -> Option<&'static str> {
        match self.first? {
            rip if (MIB..ENTRY_END).contains(&rip) => Some(ENTRY_64),
            rip if SETUP.contains(&rip) => Some("bzimage-setup"),
            _ => None,
        }
    }

    /// True if firmware was seen at work.
    pub fn has_firmware(&self) -> bool {
        self.firmware
    }

    /// An exit of a thread, and where its guest was.
    pub fn exit(&mut self, thread: i32, at: Stamp, rip: u64) {
        // A guest that begins there was restored: its kernel had been entered long before.
        self.first.get_or_insert(rip);
        if self.was_restored()
            || self.kernel.is_some()
            || *self.thread.get_or_insert(thread) != thread
        {
            return;
        }
        if let Some((after, from)) = self.previous {
            let between = Between { after, before: at };
            if rip >= UPPER_HALF {
                self.kernel = self.head.map(|(_, at)| at).or(Some(between));
            } else if from < MIB && (MIB..ENTRY_END).contains(&rip) && self.image.is_none() {
                self.image = Some((rip, between));
            }
            let page = rip / ALIGN;
            self.head = match self.head {
                _ if rip < MIB || rip % ALIGN >= HEAD => None,
                Some((of, at)) if of == page => Some((of, at)),
                _ => Some((page, between)),
            };
        }
        self.previous = Some((at, rip));
    }

    /// Firmware is still loading: what looked like the kernel's entry was its own code.
    pub fn firmware_loads(&mut self) {
        self.firmware = true;
        if self.kernel.is_none() {
            self.image = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(exits: &[(Stamp, u64)]) -> Place {
        let mut place = Place::default();
        exits.iter().for_each(|(at, rip)| place.exit(7, *at, *rip));
        place
    }

    fn between(after: Stamp, before: Stamp) -> Between {
        Between { after, before }
    }

    #[test]
    fn a_boot_by_seabios_as_its_exits_show_it() {
        // Shortened from a boot of Debian's 6.1 on SVM; 0x1effeb7be is SeaBIOS, relocated.
        let mut seen = place(&[(1, 0xfff0), (2, 0x1ef_eb7be), (3, 0xea398), (4, 0x1f_eb09)]);
        assert!(seen.image.is_some(), "SeaBIOS in a small RAM looks like a kernel");
        seen.firmware_loads();
        for (at, rip) in [
            (10, 0xcfb6),
            (20, 0x10_0057),
            (21, 0x9d0a0),
            (22, 0x431_dd4d),
            (30, 0x431_d540),
            (33, 0x1c00_1a4c),
            (34, 0x1c00_0169),
            (35, 0xffff_ffff_9900_1bf8),
            (36, 0xffff_ffff_9900_010c),
        ] {
            seen.exit(7, at, rip);
        }
        assert_eq!(seen.image, Some((0x10_0057, between(10, 20))), "not after the trampoline");
        assert_eq!(seen.kernel, Some(between(30, 33)), "at its entry code's first exit");
    }

    #[test]
    fn a_kernel_that_is_entered_directly_has_no_firmware() {
        let entered = |rip| place(&[(1, rip), (2, 0xffff_ffff_8100_0000)]).entered();
        assert_eq!(entered(0x100_0850), Some("startup_64"), "by PVH or the 64-bit protocol");
        assert_eq!(entered(0x200), Some("bzimage-setup"), "kvmtool");
        assert_eq!((entered(0xfff0), entered(0xe05b)), (None, None), "a BIOS");
        let mut seen = place(&[(1, 0x10_0000)]);
        assert!(!seen.has_firmware());
        seen.firmware_loads();
        assert!(seen.has_firmware());
        assert_eq!(Place::default().entered(), None);
        let restored = place(&[(1, 0xffff_ffff_8100_0000), (2, 0xffff_ffff_8100_1000)]);
        assert_eq!((restored.entered(), restored.kernel, restored.image), (None, None, None));
        let at = |rip| place(&[(1, rip)]).was_restored();
        assert!(
            restored.was_restored() && at(0x5555_5555_4000) && !Place::default().was_restored()
        );
        assert!(!at(0xfff0) && !at(0xffff_fff0) && !at(0x100_0000));
    }

    #[test]
    fn without_exits_of_its_entry_code_the_kernel_began_before_its_first() {
        let mut seen = place(&[(1, 0xfff0), (2, 0x431_d540), (9, 0xffff_ffff_8100_0000)]);
        seen.exit(8, 10, 0xfff0);
        assert_eq!(seen.kernel, Some(between(2, 9)));
        assert_eq!(place(&[(1, 0xffff_ffff_8100_0000)]).kernel, None, "nothing bounds it");
    }
}
