//! The arguments of an image that is stopped right after its exec: read, and replaced.
//!
//! A wrapper's VMM has arguments that nobody knows before its exec. The kernel has put them on
//! the new stack by then (the System V ABI for x86-64, 3.4.1: the count, pointers to the
//! arguments, a zero, pointers to the environment, a zero, the auxiliary vector), and nothing of
//! the image has run. So what is added goes below that, in the same form, and the stack pointer
//! is moved there. The wrapper passes nothing on and is told nothing, and `/proc/PID/cmdline`
//! stays as the user gave it.

use super::tracee::Tracee;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The arguments that a process was executed with (proc(5)).
pub fn of(pid: i32) -> Vec<OsString> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// More than this is on no stack that is read here: environments of 2 MiB are allowed.
#[cfg(target_arch = "x86_64")]
const MOST: u64 = 4 << 20;

/// Gives an image other arguments than it was executed with.
///
/// # Errors
/// Not right after an exec, or more than the stack has room for.
#[cfg(target_arch = "x86_64")]
pub fn replace(tracee: &Tracee, argv: &[OsString]) -> io::Result<()> {
    use super::ptrace;
    use rustix::process::Pid;
    use std::os::unix::fs::FileExt;

    let unexpected = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let pid = Pid::from_raw(tracee.pid).ok_or(io::ErrorKind::InvalidInput)?;
    let top = ptrace::stack_pointer(pid)?;
    let stack = tracee.mappings()?.into_iter().find(|m| (m.start..m.end).contains(&top));
    let stack = stack.ok_or_else(|| unexpected("its stack is in no mapping"))?;
    let mut bytes = vec![0u8; usize::try_from((stack.end - top).min(MOST)).unwrap_or(0)];
    tracee.read(top, &mut bytes)?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let rest = after_arguments(&words)
        .ok_or_else(|| unexpected("its stack is not laid out as execve leaves it"))?;
    let (block, at) = built(top, argv, rest);
    if at < stack.start {
        return Err(unexpected("its stack has no room for the arguments that vmeter adds"));
    }
    let memory = std::fs::File::options().write(true).open(format!("/proc/{}/mem", tracee.pid))?;
    memory.write_all_at(&block, at)?;
    ptrace::set_stack_pointer(pid, at)
}

/// Arguments can be replaced on x86-64 alone.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn replace(_: &Tracee, _: &[OsString]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The environment and the auxiliary vector, with the zeros at their ends.
fn after_arguments(words: &[u64]) -> Option<&[u64]> {
    let arguments = usize::try_from(*words.first()?).ok()?;
    let begin = arguments.checked_add(2)?;
    if *words.get(begin - 1)? != 0 {
        return None;
    }
    let environment = words.get(begin..)?.iter().position(|word| *word == 0)?;
    let mut end = begin + environment + 1;
    // Pairs of a key and a value; the key of the last is AT_NULL.
    while *words.get(end)? != 0 {
        end += 2;
    }
    words.get(begin..end + 2)
}

/// What is put on the stack below `top`, and where.
fn built(top: u64, argv: &[OsString], rest: &[u64]) -> (Vec<u8>, u64) {
    const ALIGNED: u64 = 16;
    let length: usize = argv.iter().map(|word| word.len() + 1).sum();
    let words = 1 + argv.len() + 1 + rest.len();
    let strings = (top - length as u64) / ALIGNED * ALIGNED;
    let at = (strings - 8 * words as u64) / ALIGNED * ALIGNED;
    let mut block = (argv.len() as u64).to_ne_bytes().to_vec();
    let mut next = strings;
    for word in argv {
        block.extend(next.to_ne_bytes());
        next += word.len() as u64 + 1;
    }
    block.extend([0; 8]);
    block.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
    block.resize((strings - at) as usize, 0);
    for word in argv {
        block.extend(word.as_bytes());
        block.push(0);
    }
    (block, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_reads_as_what_the_kernel_builds() {
        let rest = [0x7000, 0x7008, 0, 6, 4096, 0, 0];
        let argv: Vec<OsString> = ["qemu", "-append", "a b"].map(Into::into).into();
        let top = 0x10_0008;
        let (block, at) = built(top, &argv, &rest);
        assert_eq!(at % 16, 0);
        assert!(at + block.len() as u64 <= top);
        let word = |n: usize| u64::from_ne_bytes(block[8 * n..8 * n + 8].try_into().unwrap());
        let words: Vec<u64> = (0..1 + 3 + 1 + rest.len()).map(word).collect();
        assert_eq!((words[0], words[4]), (3, 0));
        assert_eq!(after_arguments(&words), Some(rest.as_slice()));
        let text = |address: u64| {
            let bytes = &block[(address - at) as usize..];
            String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap()).into_owned()
        };
        assert_eq!([text(words[1]), text(words[2]), text(words[3])], ["qemu", "-append", "a b"]);
        for broken in [vec![], vec![1], vec![1, 2, 3], vec![0, 0, 0, 6], vec![u64::MAX, 0]] {
            assert_eq!(after_arguments(&broken), None, "{broken:?}");
        }
    }
}
