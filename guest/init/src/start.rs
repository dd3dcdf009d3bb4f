//! What a C runtime would supply: the entry point, the memory functions the
//! compiler calls, and the panic handler.

use core::arch::{asm, global_asm};

// The kernel enters with the argument block at rsp; the ABI wants it 16-aligned
// before a call.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym enter,
);

extern "C" fn enter() -> ! {
    crate::main()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    crate::sys::write(1, b"vmeter: init panicked\n");
    let _ = crate::sys::reboot(crate::sys::REBOOT_POWER_OFF);
    crate::sys::wait_forever()
}

// Written as string instructions: a loop here would be compiled into a call of
// the very function it is in.

/// C's `memcpy`.
///
/// # Safety
/// `src` and `dest` are valid for `n` bytes and do not overlap.
#[no_mangle]
pub unsafe extern "C" fn memcpy(dest: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges; the ABI keeps DF clear.
    unsafe {
        asm!("rep movsb", inout("rcx") n => _, inout("rdi") dest => _, inout("rsi") src => _,
            options(nostack, preserves_flags));
    }
    dest
}

/// C's `memmove`.
///
/// # Safety
/// `src` and `dest` are valid for `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn memmove(dest: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    if (dest as usize).wrapping_sub(src as usize) >= n {
        // SAFETY: a forward copy never overwrites bytes it has yet to read here.
        return unsafe { memcpy(dest, src, n) };
    }
    // SAFETY: the caller vouches for both ranges; n > 0, as the ranges overlap;
    // DF is restored.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") n => _,
            inout("rdi") dest.add(n).sub(1) => _, inout("rsi") src.add(n).sub(1) => _,
            options(nostack));
    }
    dest
}

/// C's `memset`.
///
/// # Safety
/// `dest` is valid for `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn memset(dest: *mut u8, byte: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range; the ABI keeps DF clear.
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") dest => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    dest
}

/// C's `memcmp`.
///
/// # Safety
/// `a` and `b` are valid for `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    let mut i = 0;
    while i < n {
        // SAFETY: i < n, and the caller vouches for both ranges.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
        i += 1;
    }
    0
}

/// BSD's `bcmp`, which the compiler prefers where only equality is asked.
///
/// # Safety
/// `a` and `b` are valid for `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: same contract.
    unsafe { memcmp(a, b, n) }
}
