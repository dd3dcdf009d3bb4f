//! System call names of x86-64 by number.
//!
//! Needed only for `raw_syscalls:*`, whose events carry the number alone.

use syscalls::x86_64::Sysno;

/// Name of a system call, without the `sys_`.
pub fn syscall(number: u64) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(Sysno::new).map(|call| call.name())
}

#[cfg(test)]
mod tests {
    use super::syscall;

    #[test]
    fn numbers_have_the_names_of_the_abi() {
        assert_eq!(syscall(0), Some("read"));
        assert_eq!(syscall(16), Some("ioctl"));
        assert_eq!(syscall(202), Some("futex"));
        assert_eq!(syscall(262), Some("newfstatat"));
        assert_eq!(syscall(435), Some("clone3"));
        assert_eq!(syscall(462), Some("mseal"));
        assert_eq!(syscall(u64::MAX), None);
    }
}
