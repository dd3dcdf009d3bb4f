//! What a kernel's boot loader handed to it (`struct boot_params`, of which the kernel keeps a copy:
//! Documentation/arch/x86/boot.rst and zero-page.rst): where its compressed image was loaded, and
//! where that moved itself to before it unpacked the kernel.

use crate::bytes::{u32_at, u64_at};
use crate::error::{Error, Result};
use crate::guest::Guest;

/// Bytes of the structure.
const LENGTH: usize = 4096;
/// `hdr.header`, "HdrS".
const HEADER: (usize, u32) = (0x202, 0x5372_6448);
/// `hdr.type_of_loader`: who loaded it, and which of its versions; QEMU's is 11.
const LOADER: usize = 0x210;
const QEMU: u8 = 0xb;
const CODE32_START: usize = 0x214;
const RAMDISK: (usize, usize) = (0x218, 0x21c);
const ALIGNMENT: usize = 0x230;
const PAYLOAD_LENGTH: usize = 0x24c;
const PREFERRED: usize = 0x258;
const INIT_SIZE: usize = 0x260;
/// Largest image, bytes.
const LARGEST: u64 = 1 << 30;

/// The parts of it that tell when a kernel was loaded and unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootParams {
    /// True if QEMU's own option ROM loaded it.
    pub by_qemu: bool,
    /// Physical address of the image's 32-bit code, as it was loaded.
    pub code: u64,
    /// Bytes of the compressed kernel in the image.
    pub payload: u64,
    /// Physical addresses of the initrd: from, to.
    pub initrd: (u64, u64),
    /// Where the space ends in which the image unpacks itself if nothing moves it.
    top: u64,
}

impl BootParams {
    /// Reads the kernel's copy.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no symbol for it; [`Error::Ram`] when it holds nothing
    /// of an image, as of a kernel that was not compressed.
    pub fn take(guest: &Guest<'_>) -> Result<Self> {
        let bytes = guest.bytes(guest.symbol("boot_params")?, LENGTH)?;
        Self::of(&bytes).ok_or_else(|| {
            Error::Ram("the kernel's boot_params hold no valid setup header of a bzImage".into())
        })
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u32_at(bytes, at).map(u64::from);
        let preferred = u64_at(bytes, PREFERRED)?;
        let (code, payload) = (number(CODE32_START)?, number(PAYLOAD_LENGTH)?);
        let (alignment, size) = (number(ALIGNMENT)?, number(INIT_SIZE)?);
        let sane = u32_at(bytes, HEADER.0)? == HEADER.1
            && alignment.is_power_of_two()
            && (1..=LARGEST).contains(&payload)
            && (payload..=LARGEST).contains(&size);
        // arch/x86/boot/compressed/head_64.S, startup_32.
        let begin = code.checked_next_multiple_of(alignment)?.max(preferred);
        let initrd = number(RAMDISK.0)?;
        sane.then_some(BootParams {
            by_qemu: bytes.get(LOADER)? >> 4 == QEMU,
            code,
            payload,
            initrd: (initrd, initrd.checked_add(number(RAMDISK.1)?)?),
            top: begin.checked_add(size)?,
        })
    }

    /// Physical addresses that the image wrote when it moved itself, downwards and before it unpacked
    /// anything: from, to. All of the compressed kernel was moved to the end of its space, before some
    /// room for variables.
    pub fn moved_to(&self) -> Option<(u64, u64)> {
        Some((self.top.checked_sub(self.payload)?, self.top.checked_sub(self.payload / 4)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of Debian's cloud kernel 6.1 by GRUB.
    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        let fields = [
            (HEADER.0, u64::from(HEADER.1), 4),
            (LOADER, 0x72, 1),
            (CODE32_START, 0x100_0000, 4),
            (RAMDISK.0, 0x1d00_0000, 4),
            (RAMDISK.1, 0x20_0000, 4),
            (ALIGNMENT, 0x20_0000, 4),
            (PAYLOAD_LENGTH, 0xd6_96cc, 4),
            (PREFERRED, 0x100_0000, 8),
            (INIT_SIZE, 0x337_8000, 4),
        ];
        for (at, value, length) in fields {
            bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
        }
        bytes
    }

    #[test]
    fn an_image_moves_to_the_end_of_its_space() {
        let params = BootParams::of(&bytes()).expect("an image");
        let top = 0x100_0000 + 0x337_8000;
        assert_eq!(params.moved_to(), Some((top - 0xd6_96cc, top - 0xd6_96cc / 4)));
        assert_eq!((params.by_qemu, params.initrd), (false, (0x1d00_0000, 0x1d20_0000)));
        // Loaded low, as by SYSLINUX and by QEMU, it goes to the same place.
        let mut low = bytes();
        low[CODE32_START..CODE32_START + 4].copy_from_slice(&0x10_0000_u32.to_le_bytes());
        assert_eq!(BootParams::of(&low).and_then(|p| p.moved_to()), params.moved_to());
        assert_eq!(BootParams::of(&[0; LENGTH]), None, "no image");
    }

    proptest! {
        #[test]
        fn nothing_panics(from in 0x200usize..0x270, noise: [u8; 16], short in 0usize..LENGTH) {
            let mut bytes = bytes();
            bytes[from..from + 16].copy_from_slice(&noise);
            let _ = BootParams::of(&bytes).and_then(|p| p.moved_to());
            let _ = BootParams::of(&bytes[..short]);
        }
    }
}
