//! Ops from strace.

use super::descriptors::Descriptors;
use super::names::{NameId, Resolver};
use super::op::Op;

/// A finished call; strace names the requests of ioctl itself.
pub(crate) fn call(
    (tid, name): (i32, NameId),
    arguments: &str,
    (duration, result): (Option<u64>, &str),
    descriptors: &mut Descriptors,
    names: &mut Resolver,
) -> Op {
    let mut request = None;
    if names.names.name(name) == "ioctl" {
        let text = arguments.split(", ").nth(1).unwrap_or("?");
        let text = text.trim_end_matches(')');
        request = Some(match crate::text::number(text) {
            Some(number) if text.starts_with("0x") => {
                names.names.id(&crate::names::ioctl(number as u32))
            }
            _ => names.names.id(text),
        });
    }
    if names.names.name(name) == "futex" {
        let mut words = arguments.split(", ").skip(1);
        let (operation, value) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        request = futex(operation, value).map(|what| names.names.id(what));
    }
    // posix_spawn's: it returns when the child executes something.
    let spawns =
        matches!(names.names.name(name), "clone" | "clone3") && arguments.contains("CLONE_VFORK");
    let name = if spawns { names.names.id("vfork") } else { name };
    let returned = returned(result);
    let request = request.or_else(|| descriptors.about((tid, name), (arguments, returned), names));
    Op::Syscall { name, request, duration, returned }
}

/// What a call returned: of an error that matters its number, as the kernel has it, else -1.
fn returned(result: &str) -> Option<i64> {
    let mut words = result.split_whitespace();
    // `-y` says what a descriptor is: `3<socket:[4711]>`.
    let value = crate::text::number(words.next()?.split('<').next()?)? as i64;
    Some(match (value, words.next()) {
        (-1, Some("EAGAIN")) => -11,
        (-1, Some("EEXIST")) => -17,
        (-1, Some("EBUSY")) => -16,
        _ => value,
    })
}

/// What a futex call waits for, by strace's words.
fn futex(operation: &str, value: &str) -> Option<&'static str> {
    let operation = operation.split('|').next().unwrap_or("");
    let operation = match operation.trim_end_matches("_PRIVATE") {
        "FUTEX_WAIT" => 0,
        "FUTEX_LOCK_PI" => 6,
        "FUTEX_WAIT_BITSET" => 9,
        "FUTEX_LOCK_PI2" => 13,
        _ => return None,
    };
    let value = crate::text::number(value.trim_end_matches(')')).unwrap_or(0);
    super::binary::futex_waits(operation, value as u32)
}
