//! Reading a QEMU command line of the user's own.
//!
//! QEMU takes options with one dash or two, and values as the next word.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Programs that run the rest of their command line as another one.
const PREFIXES: [&str; 14] = [
    "chrt", "env", "ionice", "nice", "nohup", "numactl", "prlimit", "setarch", "setsid", "stdbuf",
    "sudo", "taskset", "time", "timeout",
];

fn file_name(word: &OsStr) -> &str {
    Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// True for the usual names of QEMU's system emulators.
pub fn is_qemu_name(word: &OsStr) -> bool {
    let name = file_name(word);
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

/// Where QEMU is on a command line that names it: at its begin, or after programs
/// that only prepare its start (`taskset -c 1 qemu-system-x86_64 …`).
pub fn qemu_position(argv: &[OsString]) -> Option<usize> {
    let first = argv.first()?;
    if is_qemu_name(first) {
        return Some(0);
    }
    if !PREFIXES.contains(&file_name(first)) {
        return None;
    }
    argv.iter().position(|word| is_qemu_name(word))
}

/// Values of an option, in order; an empty one for an option at the very end.
pub fn values<'a>(argv: &'a [OsString], name: &str) -> Vec<&'a str> {
    let is_it = |word: &OsStr| {
        let word = word.to_str().unwrap_or_default();
        let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        bare == Some(name)
    };
    let next = |at: usize| argv.get(at + 1).and_then(|w| w.to_str()).unwrap_or_default();
    (0..argv.len()).filter(|&at| is_it(&argv[at])).map(next).collect()
}

/// True if an option is there, with or without a value.
pub fn has(argv: &[OsString], name: &str) -> bool {
    !values(argv, name).is_empty()
}

/// The accelerator that a QEMU command line asks for, as QEMU names it; `icount` for
/// the translator in virtual time. Not every one is an [`Accel`](vmeter_model::Accel).
pub fn accelerator(argv: &[OsString]) -> String {
    if has(argv, "icount") {
        return "icount".into();
    }
    if has(argv, "enable-kvm") {
        return "kvm".into();
    }
    let machines = values(argv, "machine").into_iter().chain(values(argv, "M"));
    let of_machine = machines.flat_map(|m| m.split(',')).filter_map(|p| p.strip_prefix("accel="));
    let asked = values(argv, "accel").into_iter().chain(of_machine).next();
    let first = asked.unwrap_or("tcg").split([',', ':']).next().unwrap_or("tcg");
    first.strip_prefix("accel=").unwrap_or(first).to_owned()
}

/// The guest's kernel, where it is given directly.
pub fn kernel(argv: &[OsString]) -> Option<PathBuf> {
    values(argv, "kernel").last().map(PathBuf::from)
}

/// True if the command line says where the serial console goes.
pub fn says_console(argv: &[OsString]) -> bool {
    has(argv, "nographic") || has(argv, "serial") || has(argv, "nodefaults")
}

/// True if the console can be seen to reach standard output.
pub fn console_on_stdout(argv: &[OsString]) -> bool {
    let serial = values(argv, "serial");
    let stdio = |v: &&str| v.starts_with("stdio") || v.starts_with("mon:stdio");
    let chardev = values(argv, "chardev").iter().any(|v| v.starts_with("stdio"));
    serial.iter().any(stdio) || chardev || has(argv, "nographic") && serial.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn argv(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn qemu_by_name() {
        assert_eq!(qemu_position(&argv("/opt/qemu/bin/qemu-system-x86_64 -m 1")), Some(0));
        assert_eq!(qemu_position(&argv("taskset -c 1 qemu-system-i386")), Some(3));
        assert_eq!(qemu_position(&argv("env A=1 nice qemu-kvm")), Some(3));
        assert_eq!(qemu_position(&argv("firecracker --config qemu-system-x86_64")), None);
        assert_eq!(qemu_position(&[]), None);
    }

    #[test]
    fn accelerators() {
        let of = |line: &str| accelerator(&argv(line));
        assert_eq!(of("q -m 1"), "tcg");
        assert_eq!(of("q -enable-kvm"), "kvm");
        assert_eq!(of("q --accel kvm,dirty-ring-size=4096"), "kvm");
        assert_eq!(of("q -accel accel=kvm"), "kvm");
        assert_eq!(of("q -machine q35,accel=kvm:tcg"), "kvm");
        assert_eq!(of("q -M pc,accel=tcg -smp 2"), "tcg");
        assert_eq!(of("q -accel tcg -icount shift=0"), "icount");
    }

    #[test]
    fn consoles() {
        assert!(console_on_stdout(&argv("q -nographic")));
        assert!(!console_on_stdout(&argv("q -nographic -serial file:x")));
        assert!(console_on_stdout(&argv("q -serial mon:stdio")));
        assert!(!says_console(&argv("q -m 1")));
        assert_eq!(kernel(&argv("q --kernel a -kernel b")), Some("b".into()));
        assert_eq!(values(&argv("q -kernel"), "kernel"), [""]);
    }

    proptest! {
        #[test]
        fn never_panics(words in proptest::collection::vec("[-a-z=,:]{0,12}", 0..12)) {
            let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
            let _ = (qemu_position(&argv), accelerator(&argv), kernel(&argv));
            let _ = (says_console(&argv), console_on_stdout(&argv));
        }
    }
}
