//! Reading a command line of the user's own.
//!
//! QEMU takes options with one dash or two, and values as the next word; other VMMs take
//! them with two, and values as the next word or after a `=`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Programs that run the rest of their command line as another one, and pass descriptors on to it
/// (sudo does not).
const PREFIXES: [&str; 13] = [
    "chrt", "env", "ionice", "nice", "nohup", "numactl", "prlimit", "setarch", "setsid", "stdbuf",
    "taskset", "time", "timeout",
];

fn file_name(word: &OsStr) -> &str {
    Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// True for the usual names of QEMU's system emulators.
pub fn is_qemu_name(word: &OsStr) -> bool {
    let name = file_name(word);
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

/// The architecture in the usual name of a QEMU's system emulator: `qemu-system-ARCHITECTURE`, maybe
/// with a suffix of who packaged it (`qemu-system-x86_64-spice`).
pub fn architecture(word: &OsStr) -> Option<&str> {
    let name = file_name(word).strip_prefix("qemu-system-")?;
    name.split(['-', '.']).next()
}

/// Where a VMM is on a command line that names it: at its begin, or after programs that
/// only prepare its start (`taskset -c 1 qemu-system-x86_64 …`).
pub fn position(argv: &[OsString], is_named: impl Fn(&OsStr) -> bool) -> Option<usize> {
    let first = argv.first()?;
    if is_named(first) {
        return Some(0);
    }
    if !PREFIXES.contains(&file_name(first)) {
        return None;
    }
    argv.iter().position(|word| is_named(word))
}

/// The value of a `--name VALUE` or `--name=VALUE`: the argument that it is in, and the
/// value itself. The last of several.
pub fn long<'a>(argv: &'a [OsString], name: &str) -> Option<(usize, &'a OsStr)> {
    let option = format!("--{name}");
    let joined = format!("--{name}=");
    (0..argv.len()).rev().find_map(|at| {
        let word = argv[at].as_os_str();
        if *word == *option {
            return Some((at + 1, argv.get(at + 1)?.as_os_str()));
        }
        let value = word.as_bytes().strip_prefix(joined.as_bytes())?;
        Some((at, OsStr::from_bytes(value)))
    })
}

/// As [`long`], of an option that has a short name (or none) as well: `-k VALUE`.
pub fn option<'a>(argv: &'a [OsString], names: (&str, &str)) -> Option<(usize, &'a OsStr)> {
    let short = format!("-{}", names.1);
    let by_short = || {
        let at = argv.iter().rposition(|word| *word == *short)?;
        Some((at + 1, argv.get(at + 1)?.as_os_str()))
    };
    long(argv, names.0).or_else(|| if names.1.is_empty() { None } else { by_short() })
}

/// Puts `value` in the place of the one that [`long`] found in argument `at`, whose
/// `--name=` stays.
pub fn set_long(argv: &mut [OsString], at: usize, value: &OsStr) {
    let Some(word) = argv.get_mut(at) else { return };
    let bytes = word.as_bytes();
    let name = bytes.starts_with(b"--").then(|| bytes.iter().position(|byte| *byte == b'='));
    let mut whole = match name.flatten() {
        Some(end) => OsStr::from_bytes(&bytes[..=end]).to_owned(),
        None => OsString::new(),
    };
    whole.push(value);
    *word = whole;
}

/// A kernel command line with more words: before a `--`, whose followers the kernel hands to
/// init (Linux `Documentation/admin-guide/kernel-parameters.rst`).
pub fn with_kernel_words(line: &OsStr, words: &str) -> OsString {
    let bytes = line.as_bytes();
    let is_end = |at: &usize| {
        let before = *at == 0 || bytes[at - 1] == b' ';
        let after = bytes.get(at + 2).is_none_or(|byte| *byte == b' ');
        before && after && bytes[*at..].starts_with(b"--")
    };
    let end = (0..bytes.len()).find(is_end).unwrap_or(bytes.len());
    let (own, init) = bytes.split_at(end);
    let own = own.trim_ascii_end();
    let mut all = OsStr::from_bytes(own).to_owned();
    if !own.is_empty() {
        all.push(" ");
    }
    all.push(words);
    if !init.is_empty() {
        all.push(" ");
        all.push(OsStr::from_bytes(init));
    }
    all
}

/// True if a program's file name is `name`, or begins with it and a version or a kind
/// (`firecracker-v1.12.0-x86_64`, `cloud-hypervisor-static`).
pub fn is_program(word: &OsStr, name: &str) -> bool {
    let rest = file_name(word).strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
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

/// The guest's memory that a command line asks for, MiB: `-m 2G`, `-m size=2G,slots=2`,
/// `--memory size=2G`, `--mem 2048` (crosvm, kvmtool). Without a unit all mean MiB (qemu(1)).
pub fn memory_mib(argv: &[OsString]) -> Option<u64> {
    let all = ["m", "mem", "memory"].map(|option| values(argv, option));
    let value = all.into_iter().flatten().next_back()?;
    let value = value
        .split(',')
        .find_map(|part| part.strip_prefix("size="))
        .or_else(|| value.split(',').next())?;
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match value.get(digits.len()..)?.to_ascii_lowercase().trim_end_matches(['i', 'b']) {
        "" | "m" => Some(number),
        "k" => Some(number / 1024),
        "g" => number.checked_mul(1024),
        "t" => number.checked_mul(1024 * 1024),
        _ => None,
    }
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

/// The firmware that a QEMU command line asks for, by file: what is in the first flash
/// (`-drive if=pflash`, `-blockdev` with `-machine pflash0=`), else `-bios`, else what the
/// machine has by default (hw/i386/pc.c; hw/i386/microvm.c: qboot without ACPI).
pub fn firmware(argv: &[OsString]) -> String {
    let key = |list: &str, key: &str| {
        let prefix = format!("{key}=");
        list.split(',').find_map(|p| p.strip_prefix(&prefix)).map(str::to_owned)
    };
    let drives = values(argv, "drive");
    let unit = |d: &str| key(d, "unit").unwrap_or_default().parse::<u32>().unwrap_or(0);
    let mut flashes: Vec<&str> =
        drives.into_iter().filter(|d| key(d, "if").as_deref() == Some("pflash")).collect();
    flashes.sort_by_key(|d| unit(d));
    let machines: Vec<&str> =
        values(argv, "machine").into_iter().chain(values(argv, "M")).collect();
    let node = machines.iter().find_map(|m| key(m, "pflash0").or_else(|| key(m, "pflash")));
    let of_node = node.and_then(|node| {
        let nodes = values(argv, "blockdev");
        let named = |name: &str| {
            nodes.iter().copied().find(|n| key(n, "node-name").as_deref() == Some(name))
        };
        // A format's node (raw) names the one below it, which has the file.
        let top = named(&node)?;
        let below = key(top, "file").and_then(|file| named(&file));
        [Some(top), below]
            .into_iter()
            .flatten()
            .find_map(|n| key(n, "filename").or_else(|| key(n, "file.filename")))
    });
    let flashed = of_node.or_else(|| flashes.first().and_then(|d| key(d, "file")));
    let asked = flashed.or_else(|| values(argv, "bios").last().map(|&bios| bios.to_owned()));
    asked.unwrap_or_else(|| {
        let microvm = machines.iter().any(|m| m.split(',').next() == Some("microvm"));
        let acpi = !machines.iter().any(|m| key(m, "acpi").as_deref() == Some("off"));
        match (microvm, acpi) {
            (true, true) => "bios-microvm.bin",
            (true, false) => "qboot.rom",
            (false, _) => "bios-256k.bin",
        }
        .to_owned()
    })
}

/// True if QEMU puts the kernel into memory (`-kernel`), and enters it without UEFI, which
/// loads what it is given like any other program.
pub fn loads_kernel(argv: &[OsString]) -> bool {
    let firmware = firmware(argv).to_ascii_lowercase();
    let uefi = ["ovmf", "edk2", "uefi", ".fd"].iter().any(|name| firmware.contains(name));
    has(argv, "kernel") && !uefi
}

/// True if the command line says where the serial console goes.
pub fn says_console(argv: &[OsString]) -> bool {
    has(argv, "nographic") || has(argv, "serial") || has(argv, "nodefaults")
}

/// True if something other than a console has standard output, or nothing may: a second user of
/// it, QEMU refuses.
pub fn stdio_is_taken(argv: &[OsString]) -> bool {
    let users = ["chardev", "monitor", "qmp", "qmp-pretty", "parallel", "debugcon", "gdb"];
    let stdio = |v: &str| v.starts_with("stdio") || v.starts_with("mon:stdio");
    let displays = values(argv, "display");
    users.iter().flat_map(|option| values(argv, option)).any(stdio)
        || displays.iter().any(|display| display.starts_with("curses"))
        || has(argv, "curses")
        || has(argv, "daemonize")
}

/// The file that the first serial port is written to, and whether it is appended to: `-serial
/// file:F`, or a port of a `-chardev file`.
pub fn console_file(argv: &[OsString]) -> Option<(&str, bool)> {
    let serial = values(argv, "serial").into_iter().next();
    if let Some(file) = serial.and_then(|serial| serial.strip_prefix("file:")) {
        return Some((file, false));
    }
    let is_used = |id: &str| {
        let by_serial = serial.is_none_or(|serial| serial == format!("chardev:{id}"));
        let devices = values(argv, "device");
        let by_device = devices.iter().any(|d| {
            (d.contains("serial") || d.contains("console")) && d.contains(&format!("chardev={id}"))
        });
        serial.is_some() && by_serial || by_device
    };
    values(argv, "chardev").into_iter().find_map(|chardev| {
        let mut parts = chardev.split(',');
        (parts.next() == Some("file")).then_some(())?;
        let value = |key: &str| chardev.split(',').find_map(|part| part.strip_prefix(key));
        let (id, path) = (value("id=")?, value("path=")?);
        is_used(id).then(|| (path, value("append=") == Some("on")))
    })
}

/// True for a file that is the same one for every process that names it.
pub fn is_same_for_all(file: &str) -> bool {
    !file.starts_with("/dev/") && !file.starts_with("/proc/")
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

    #[test]
    fn the_memory_that_is_asked_for() {
        let of =
            |line: &str| memory_mib(&line.split(' ').map(Into::into).collect::<Vec<OsString>>());
        assert_eq!(of("qemu -m 512"), Some(512));
        assert_eq!(of("qemu -m 2G,slots=2,maxmem=4G"), Some(2048));
        assert_eq!(of("qemu -m slots=2,size=1GiB"), Some(1024));
        assert_eq!(of("cloud-hypervisor --memory size=256M,shared=on"), Some(256));
        assert_eq!(of("crosvm run --mem size=512 vmlinux"), Some(512));
        assert_eq!(of("qemu -m x"), None);
        assert_eq!(of("qemu -kernel k"), None);
    }

    #[test]
    fn who_has_standard_output_and_where_a_console_goes() {
        let of = |line: &str| line.split(' ').map(Into::into).collect::<Vec<OsString>>();
        for (line, taken) in [
            ("qemu -m 1", false),
            ("qemu -serial file:x", false),
            ("qemu -chardev stdio,id=c -device virtconsole,chardev=c", true),
            ("qemu -monitor stdio", true),
            ("qemu -display curses", true),
            ("qemu -daemonize", true),
        ] {
            assert_eq!(stdio_is_taken(&of(line)), taken, "{line}");
        }
        for (line, file) in [
            ("qemu -serial file:/tmp/a,b", Some(("/tmp/a,b", false))),
            ("qemu -chardev file,id=c,path=x,append=on -serial chardev:c", Some(("x", true))),
            ("qemu -chardev file,id=c,path=x -device virtconsole,chardev=c", Some(("x", false))),
            ("qemu -chardev file,id=log,path=x -serial stdio", None),
            ("qemu -serial mon:stdio", None),
        ] {
            assert_eq!(console_file(&of(line)), file, "{line}");
        }
    }

    #[test]
    fn the_firmware_that_runs() {
        for (line, expected) in [
            ("qemu -M q35", "bios-256k.bin"),
            ("qemu -bios a.rom", "a.rom"),
            ("qemu -M microvm", "bios-microvm.bin"),
            ("qemu -machine microvm,acpi=off", "qboot.rom"),
            (
                "qemu -drive if=pflash,unit=1,file=VARS.fd -drive if=pflash,format=raw,file=OVMF_CODE.fd",
                "OVMF_CODE.fd",
            ),
            (
                "qemu -blockdev driver=file,filename=code.fd,node-name=f0 \
                 -blockdev node-name=pf0,driver=raw,file=f0 -machine q35,pflash0=pf0",
                "code.fd",
            ),
            ("qemu -drive if=virtio,file=disk.img", "bios-256k.bin"),
        ] {
            let argv: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
            assert_eq!(firmware(&argv), expected, "{line}");
        }
        let argv = |line: &str| line.split(' ').map(Into::into).collect::<Vec<OsString>>();
        assert!(loads_kernel(&argv("qemu -kernel k")));
        assert!(!loads_kernel(&argv("qemu -kernel k -bios /usr/share/OVMF/OVMF.fd")));
        assert!(!loads_kernel(&argv("qemu -drive file=d")));
    }

    #[test]
    fn words_for_the_kernel_stand_before_those_for_init() {
        let with = |line: &str| with_kernel_words(OsStr::new(line), "trace=1");
        assert_eq!(with(""), "trace=1");
        assert_eq!(with("quiet"), "quiet trace=1");
        assert_eq!(with("quiet -- single"), "quiet trace=1 -- single");
        assert_eq!(with("-- single"), "trace=1 -- single");
        assert_eq!(with("a=-- b--c"), "a=-- b--c trace=1");
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        let mut argv: Vec<OsString> =
            ["--config-file=a=b.json", "--config-file", "c.json"].map(OsString::from).into();
        set_long(&mut argv, 0, OsStr::new("/x.json"));
        set_long(&mut argv, 2, OsStr::new("/y.json"));
        assert_eq!(argv, ["--config-file=/x.json", "--config-file", "/y.json"]);
    }
    use proptest::prelude::*;

    fn argv(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn qemu_by_name() {
        let qemu = |line: &str| position(&argv(line), is_qemu_name);
        assert_eq!(qemu("/opt/qemu/bin/qemu-system-x86_64 -m 1"), Some(0));
        assert_eq!(qemu("taskset -c 1 qemu-system-i386"), Some(3));
        assert_eq!(qemu("env A=1 nice qemu-kvm"), Some(3));
        assert_eq!(qemu("firecracker --config qemu-system-x86_64"), None);
        assert_eq!(position(&[], is_qemu_name), None);
    }

    #[test]
    fn other_programs_and_their_long_options() {
        let named = |word: &str| is_program(word.as_ref(), "firecracker");
        assert!(named("/usr/bin/firecracker") && named("firecracker-v1.12.0-x86_64"));
        assert!(!named("firecrackers") && !named("/firecracker/run"));
        let line = argv("ch --kernel a --cmdline=quiet --kernel b --end");
        assert_eq!(long(&line, "kernel"), Some((5, "b".as_ref())));
        assert_eq!(long(&line, "cmdline"), Some((3, "quiet".as_ref())));
        assert_eq!((long(&line, "cmd"), long(&line, "end")), (None, None));
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
        assert_eq!(values(&argv("q --kernel a -kernel b"), "kernel"), ["a", "b"]);
        assert_eq!(values(&argv("q -kernel"), "kernel"), [""]);
    }

    proptest! {
        #[test]
        fn never_panics(words in proptest::collection::vec("[-a-z=,:]{0,12}", 0..12)) {
            let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
            let _ = (position(&argv, is_qemu_name), accelerator(&argv), long(&argv, "a"));
            let _ = (says_console(&argv), console_on_stdout(&argv));
        }
    }
}
