//! Which x86-64 instruction is the indirect call of an initcall's function.
//!
//! Decided when QEMU translates the block, not from the kernel's file: the
//! kernel patches its own retpolines (`call __x86_indirect_thunk_rbx` becomes
//! `call *%rbx` and padding) before it runs the first initcall.

use crate::addresses::Addresses;

/// True for `call *r/m64` and for a call of a retpoline thunk.
///
/// `address` is where the instruction is in the kernel image.
pub fn is_indirect(bytes: &[u8], address: u64, addresses: &Addresses) -> bool {
    if let [0xe8, a, b, c, d] = *bytes {
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        let next = address.wrapping_add(5);
        return addresses.is_thunk(next.wrapping_add_signed(distance));
    }
    // Prefixes that such calls have: segment or notrack, and REX.
    let opcode = bytes.iter().position(|b| !matches!(b, 0x2e | 0x3e | 0x40..=0x4f));
    match opcode.map(|at| &bytes[at..]) {
        Some([0xff, modrm, ..]) => modrm >> 3 & 7 == 2,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_calls_through_registers_and_thunks() {
        let list = "ffffffff82000000 0 t 800 thunks\n";
        let addresses = Addresses::parse(list).unwrap();
        let at = 0xffff_ffff_8100_0000;
        let indirect = |bytes: &[u8]| is_indirect(bytes, at, &addresses);
        assert!(indirect(&[0xff, 0xd3]));
        assert!(indirect(&[0x41, 0xff, 0xd3]));
        assert!(indirect(&[0xe8, 0xfb, 0xff, 0xff, 0x00]));
        assert!(!indirect(&[0xe8, 0xfb, 0xff, 0xff, 0x01]));
        assert!(!indirect(&[0xff, 0xe3]), "a jump");
        assert!(!indirect(&[0xc3]));
        assert!(!indirect(&[]));
        assert!(!indirect(&[0x41]));
    }
}
