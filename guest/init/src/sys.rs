//! System calls of x86-64 Linux, as far as this init needs them.
//!
//! Numbers and flags are those of the kernel's `arch/x86/entry/syscalls/syscall_64.tbl`
//! and `include/uapi`.

use core::arch::asm;
use core::ffi::CStr;

/// A system call's error number (or a program's exit status).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// `ENOENT`.
    pub const NO_SUCH_FILE: Errno = Errno(2);
    /// `EBUSY`.
    pub const BUSY: Errno = Errno(16);
    /// `EEXIST`.
    pub const EXISTS: Errno = Errno(17);
    /// `EIO`.
    const IO: Errno = Errno(5);
    /// `EINTR`.
    const INTERRUPTED: Errno = Errno(4);
}

const READ: usize = 0;
const WRITE: usize = 1;
const OPEN: usize = 2;
const CLOSE: usize = 3;
const POLL: usize = 7;
const ACCESS: usize = 21;
const IOCTL: usize = 16;
const PAUSE: usize = 34;
const NANOSLEEP: usize = 35;
const FORK: usize = 57;
const EXECVE: usize = 59;
const EXIT: usize = 60;
const WAIT4: usize = 61;
const MKDIR: usize = 83;
const MOUNT: usize = 165;
const REBOOT: usize = 169;
const IOPL: usize = 172;
const GETDENTS64: usize = 217;
const CLOCK_GETTIME: usize = 228;
const INOTIFY_ADD_WATCH: usize = 254;
const INOTIFY_INIT1: usize = 294;
const FINIT_MODULE: usize = 313;

const O_RDONLY: usize = 0;
/// Open for writing.
pub const O_WRONLY: usize = 1;
/// Close on exec.
pub const O_CLOEXEC: usize = 0o2000000;
const O_NONBLOCK: usize = 0o4000;
/// Mount read-only.
pub const MS_RDONLY: usize = 1;
const MS_MOVE: usize = 8192;
const CLOCK_MONOTONIC: usize = 1;
/// `LINUX_REBOOT_CMD_RESTART`
pub const REBOOT_RESTART: usize = 0x0123_4567;
/// `LINUX_REBOOT_CMD_POWER_OFF`
pub const REBOOT_POWER_OFF: usize = 0x4321_fedc;

/// Makes a system call.
///
/// # Safety
/// Pointers among the arguments must be valid for what the call does with them.
unsafe fn syscall(number: usize, args: [usize; 5]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers rcx and r11 only; the caller vouches for the pointers.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            in("r8") args[4], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if result < 0 {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Sees that files 0 to 2 are taken, as a kernel without a console leaves them closed
/// and what is printed must never reach a file that was opened later.
pub fn reserve_standard_files() {
    while let Ok(file) = open(c"/", O_RDONLY) {
        if file > 2 {
            return close(file);
        }
    }
}

/// Mounts a file system, making the mount point where it is missing. A file system
/// that is mounted there already is no error.
pub fn mount(
    source: &CStr,
    target: &CStr,
    kind: &CStr,
    flags: usize,
    options: &CStr,
) -> Result<(), Errno> {
    let args = [source.as_ptr(), target.as_ptr(), kind.as_ptr()].map(|p| p as usize);
    // SAFETY: all four are NUL-terminated.
    let attempt =
        || unsafe { syscall(MOUNT, [args[0], args[1], args[2], flags, options.as_ptr() as usize]) };
    let mut result = attempt();
    if result == Err(Errno::NO_SUCH_FILE) {
        // SAFETY: NUL-terminated.
        let _ = unsafe { syscall(MKDIR, [args[1], 0o755, 0, 0, 0]) };
        result = attempt();
    }
    match result {
        Ok(_) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Moves a mount to another place.
pub fn move_mount(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // SAFETY: both are NUL-terminated; type and data are not used by MS_MOVE.
    unsafe { syscall(MOUNT, [from.as_ptr() as usize, to.as_ptr() as usize, 0, MS_MOVE, 0]) }
        .map(drop)
}

/// Opens a file.
pub fn open(path: &CStr, flags: usize) -> Result<i32, Errno> {
    // SAFETY: NUL-terminated.
    unsafe { syscall(OPEN, [path.as_ptr() as usize, flags, 0, 0, 0]) }.map(|fd| fd as i32)
}

/// Closes a file.
pub fn close(file: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall(CLOSE, [file as usize, 0, 0, 0, 0]) };
}

/// Reads once.
pub fn read(file: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is writable for its length.
    unsafe { syscall(READ, [file as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0]) }
}

/// Writes all of it, in one call unless the kernel takes less; errors have no one to go to.
pub fn write(file: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the slice is readable for its length.
        let result =
            unsafe { syscall(WRITE, [file as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0]) };
        match result {
            Ok(0) => return,
            Ok(n) => bytes = bytes.get(n..).unwrap_or(b""),
            Err(Errno::INTERRUPTED) => {}
            Err(_) => return,
        }
    }
}

/// Reads a file from its start until the buffer is full or the file ends.
pub fn read_file<'b>(path: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = open(path, O_RDONLY | O_CLOEXEC)?;
    let mut len = 0;
    while len < buffer.len() {
        match read(file, &mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTERRUPTED) => {}
            Err(error) => {
                close(file);
                return Err(error);
            }
        }
    }
    close(file);
    Ok(&buffer[..len])
}

/// Reads the first `bytes` of a file and drops them; a shorter file is no error.
pub fn read_through(path: &CStr, bytes: u64) -> Result<(), Errno> {
    stream(path, bytes, &|_| ())
}

/// Copies a file of unknown length to the console.
pub fn copy_to_console(path: &CStr) -> Result<(), Errno> {
    stream(path, u64::MAX, &|chunk| write(1, chunk))
}

#[inline(never)]
fn stream(path: &CStr, mut left: u64, each: &dyn Fn(&[u8])) -> Result<(), Errno> {
    let file = open(path, O_RDONLY | O_CLOEXEC)?;
    let mut buffer = [0u8; 65536];
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        let n = read(file, &mut buffer[..want])?;
        if n == 0 {
            break;
        }
        each(&buffer[..n]);
        left -= n as u64;
    }
    close(file);
    Ok(())
}

/// True when the file exists.
pub fn exists(path: &CStr) -> bool {
    // SAFETY: NUL-terminated; mode 0 asks for existence.
    unsafe { syscall(ACCESS, [path.as_ptr() as usize, 0, 0, 0, 0]) }.is_ok()
}

/// A file that becomes readable when something is created in the folder.
pub fn watch_created(folder: &CStr) -> Result<i32, Errno> {
    const IN_CREATE: usize = 0x100;
    // SAFETY: no pointers.
    let file = unsafe { syscall(INOTIFY_INIT1, [O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0]) }?;
    // SAFETY: NUL-terminated.
    unsafe {
        syscall(INOTIFY_ADD_WATCH, [file, folder.as_ptr() as usize, IN_CREATE, 0, 0])?;
    }
    Ok(file as i32)
}

/// Waits until the file is readable or the time is over.
pub fn wait_readable(file: i32, timeout_ms: i32) {
    /// `struct pollfd`
    #[repr(C)]
    struct PollFd {
        file: i32,
        events: i16,
        returned: i16,
    }
    const POLLIN: i16 = 1;
    let mut poll = PollFd { file, events: POLLIN, returned: 0 };
    let poll = (&raw mut poll) as usize;
    // SAFETY: one pollfd, alive across the call.
    let _ = unsafe { syscall(POLL, [poll, 1, timeout_ms as usize, 0, 0]) };
}

/// `CLOCK_MONOTONIC`, ns.
pub fn monotonic_ns() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: a timespec is two 64-bit words here.
    let _ =
        unsafe { syscall(CLOCK_GETTIME, [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// A number that tells this boot from any other: no secret, for it is made of the clocks.
pub fn nonce() -> u64 {
    // SAFETY: RDTSC reads a register, which user mode may unless the kernel was asked to forbid it.
    let mut mixed = unsafe { core::arch::x86_64::_rdtsc() } ^ monotonic_ns().rotate_left(32);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb_u64] {
        mixed = (mixed ^ mixed >> 30).wrapping_mul(factor);
    }
    mixed ^ mixed >> 31
}

/// Sleeps.
pub fn sleep_ms(ms: u64) -> Result<(), Errno> {
    let mut time = [ms / 1000, ms % 1000 * 1_000_000];
    let left = time.as_mut_ptr() as usize;
    // SAFETY: a timespec, which the kernel overwrites with the time left.
    while unsafe { syscall(NANOSLEEP, [left, left, 0, 0, 0]) } == Err(Errno::INTERRUPTED) {}
    Ok(())
}

/// Spins.
pub fn busy_ms(ms: u64) -> Result<(), Errno> {
    let end = monotonic_ns().saturating_add(ms.saturating_mul(1_000_000));
    while monotonic_ns() < end {
        core::hint::spin_loop();
    }
    Ok(())
}

/// Loads a kernel module.
pub fn insmod(path: &CStr, parameters: &CStr) -> Result<(), Errno> {
    let file = open(path, O_RDONLY | O_CLOEXEC)?;
    // SAFETY: the parameters are NUL-terminated.
    let result =
        unsafe { syscall(FINIT_MODULE, [file as usize, parameters.as_ptr() as usize, 0, 0, 0]) };
    close(file);
    result.map(drop)
}

/// Runs a program (at most seven arguments) and waits for it; a status other than 0
/// is the error, a signal 128 + its number.
pub fn run(command: &[&CStr]) -> Result<(), Errno> {
    let mut argv = [0usize; 8];
    for (slot, word) in argv.iter_mut().take(7).zip(command) {
        *slot = word.as_ptr() as usize;
    }
    let environment = [c"PATH=/usr/sbin:/usr/bin:/sbin:/bin".as_ptr() as usize, 0];
    // SAFETY: no pointers; the child shares nothing with this single thread.
    let child = unsafe { syscall(FORK, [0; 5]) }?;
    if child == 0 {
        // SAFETY: both arrays end with a null pointer and hold NUL-terminated strings.
        let result = unsafe {
            syscall(EXECVE, [argv[0], argv.as_ptr() as usize, environment.as_ptr() as usize, 0, 0])
        };
        let status = result.map_or_else(|error| error.0, |_| 0);
        // SAFETY: no pointers. The errno reaches the parent as the status.
        let _ = unsafe { syscall(EXIT, [status as usize, 0, 0, 0, 0]) };
    }
    let mut status = 0u32;
    // SAFETY: the status is writable.
    while unsafe { syscall(WAIT4, [child, (&raw mut status) as usize, 0, 0, 0]) }
        == Err(Errno::INTERRUPTED)
    {}
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => Ok(()),
        (0, code) => Err(Errno(code as i32)),
        (signal, _) => Err(Errno(128 + signal as i32)),
    }
}

/// Counts the PCI bridges (class 0604) whose PCI Express capability says root port.
#[inline(never)]
pub fn count_root_ports() -> Result<u64, Errno> {
    let folder = open(c"/sys/bus/pci/devices", O_RDONLY | O_CLOEXEC)?;
    let mut entries = [0u8; 4096];
    let mut count = 0;
    loop {
        // SAFETY: the buffer is writable for its length.
        let len = unsafe {
            let buffer = entries.as_mut_ptr() as usize;
            syscall(GETDENTS64, [folder as usize, buffer, entries.len(), 0, 0])
        }?;
        if len == 0 {
            break;
        }
        let mut rest = &entries[..len];
        // struct linux_dirent64: u64 inode, u64 offset, u16 length, u8 type, name.
        while let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, low, high, _, name @ ..] = rest {
            let mut path = crate::text::Text::<512>::path(b"/sys/bus/pci/devices/");
            path.push(name).push(b"/config");
            count += u64::from(is_root_port(path.c_str()));
            let entry = usize::from(u16::from_le_bytes([*low, *high]));
            rest = rest.get(entry.max(1)..).unwrap_or(b"");
        }
    }
    close(folder);
    Ok(count)
}

/// PCI Express Base Specification 7.5.3.2: the port type is bits 7:4 of the
/// capability's flags, 4 for a root port.
fn is_root_port(config: &CStr) -> bool {
    let mut bytes = [0u8; 256];
    if read_file(config, &mut bytes).map_or(0, |b| b.len()) < 64 || bytes[0x0a..0x0c] != [4, 6] {
        return false;
    }
    let mut at = usize::from(bytes[0x34] & 0xfc);
    // A list has at most 48 entries; a broken one may be a loop.
    for _ in 0..48 {
        if at < 0x40 {
            return false;
        }
        if bytes[at] == 0x10 {
            return bytes[at + 2] >> 4 == 4;
        }
        at = usize::from(bytes[at + 1] & 0xfc);
    }
    false
}

/// `reboot(2)`; returns only when the kernel refuses.
pub fn reboot(command: usize) -> Result<(), Errno> {
    const MAGIC1: usize = 0xfee1_dead;
    const MAGIC2: usize = 672_274_793;
    // SAFETY: no pointers with these commands.
    unsafe { syscall(REBOOT, [MAGIC1, MAGIC2, command, 0, 0]) }.map(drop)
}

/// Waits until a terminal has sent all that was written to it (`tcdrain`).
pub fn drain(terminal: i32) -> Result<(), Errno> {
    const TCSBRK: usize = 0x5409;
    // SAFETY: no pointers: an argument other than 0 waits and sends no break.
    unsafe { syscall(IOCTL, [terminal as usize, TCSBRK, 1, 0, 0]) }.map(drop)
}

/// Writes bytes to an I/O port: one instruction each, or one `rep outsb` for all.
pub fn write_port_bytes(port: u16, bytes: &[u8], together: bool) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall(IOPL, [3, 0, 0, 0, 0]) }?;
    if together {
        // SAFETY: IOPL 3 allows it, the port was named on the command line for this, and what
        // is read is the slice.
        unsafe {
            asm!("rep outsb", in("dx") port, inout("rsi") bytes.as_ptr() => _,
                inout("rcx") bytes.len() => _, options(readonly, nostack));
        }
        return Ok(());
    }
    for byte in bytes {
        // SAFETY: as above.
        unsafe { asm!("out dx, al", in("dx") port, in("al") *byte, options(nomem, nostack)) };
    }
    Ok(())
}

/// Writes a byte to an I/O port; returns when nothing there ends the machine.
pub fn write_port(port: u16, value: u8) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall(IOPL, [3, 0, 0, 0, 0]) }?;
    // SAFETY: IOPL 3 allows it; the port was named on the command line for this.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
    Err(Errno::IO)
}

/// Never returns; process 1 must not end, and its orphans are reaped.
pub fn wait_forever() -> ! {
    loop {
        // SAFETY: any child, no status wanted.
        if unsafe { syscall(WAIT4, [usize::MAX, 0, 0, 0, 0]) }.is_err() {
            // SAFETY: no pointers.
            let _ = unsafe { syscall(PAUSE, [0; 5]) };
        }
    }
}
