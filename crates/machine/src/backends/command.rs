//! A command line of the user's own, run as given.
//!
//! What VMM it is is recognised by its name. Anything else (a script, a program that starts VMMs,
//! `taskset`, `sudo`) is launched as it is given, once, and asked nothing; the VMM that it executes
//! is known at that exec, with its real arguments, and is added to there.

use super::qemu::{Qemu, VERSION_WITHIN};
use crate::argv;
use crate::backend::{self, Backend, Machine, MachineError, Request};
use crate::capabilities;
use crate::files::{digest, kernel_kind, KernelKind};
use crate::launch::{self, LaunchError};
use crate::output::version_line;
use crate::vmm::{Console, Dialect, ParsedCommandLine};
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use vmeter_model::MachineSpec;

/// The back end.
pub struct UserCommand;

impl Backend for UserCommand {
    fn name(&self) -> &'static str {
        "command"
    }

    fn option(&self) -> Option<&'static str> {
        None
    }

    fn accepts(&self, spec: &MachineSpec) -> bool {
        !spec.command.is_empty()
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let spec = request.spec;
        if let Some(option) = ignored(spec) {
            return Err(MachineError::Combination(format!(
                "{option}: vmeter runs a command line after `--` as given; put this setting into \
                 that command line"
            )));
        }
        let argv = full_argv(spec)?;
        let program = argv.first().ok_or(LaunchError::Empty)?;
        let program = launch::find_program(program)?;
        let mut machine = Machine { backend: self.name(), ..Machine::default() };
        let version = recognise(&mut machine, &argv, spec.no_inject);
        if machine.dialect.is_none() && !spec.no_inject {
            ask_ahead(&argv, request.cache);
        }
        machine.may_inject = machine.dialect.is_some() && !spec.no_inject;
        explain_injection(&mut machine, spec.no_inject);
        let version = version.unwrap_or_else(|| "version unknown".into());
        machine.provenance.insert("vmm".into(), format!("{version} ({})", program.display()));
        if let Some(dialect) = machine.dialect {
            take(&mut machine, dialect.read(&argv), &argv, request);
            if let Some(option) = dialect.restores(&argv) {
                let why = "a restored guest resumes without a boot: vmeter adds nothing to its \
                    kernel command line, and ignores its log and trace, which are from the boot \
                    before the snapshot";
                machine.choose("snapshot", option, why);
            }
        }
        if let Some(kernel) = &spec.kernel {
            lend_symbols(&mut machine, kernel)?;
        }
        machine.argv = argv;
        Ok(machine)
    }
}

/// `--kernel FILE` beside a command line: the kernel that its disk boots, for its symbols.
fn lend_symbols(machine: &mut Machine, kernel: &Path) -> Result<(), MachineError> {
    let file = |error| MachineError::File { what: "kernel", path: kernel.into(), error };
    let shown = kernel.display();
    if let Some(own) = machine.kernel.as_ref().filter(|own| own.as_path() != kernel) {
        return Err(MachineError::Combination(format!(
            "--kernel {shown}: the command line after `--` boots {}; leave --kernel out",
            own.display()
        )));
    }
    if kernel_kind(kernel).map_err(file)? == KernelKind::Other {
        return Err(MachineError::Combination(format!(
            "--kernel {shown}: not a kernel; vmeter needs the symbols of the vmlinuz or vmlinux \
             that the machine boots"
        )));
    }
    let of_file = digest(kernel).map_err(file)?;
    machine.provenance.insert("kernel".into(), format!("{shown} {of_file}"));
    let why = "--kernel: vmeter reads the symbols in it; the command line decides what boots";
    machine.choose("kernel", shown.to_string(), why);
    machine.kernel = Some(kernel.into());
    Ok(())
}

/// An option that describes a machine of vmeter's own, which this is not.
fn ignored(spec: &MachineSpec) -> Option<&'static str> {
    let given = [
        ("--accel", spec.accel.is_some()),
        ("--machine", spec.machine.is_some()),
        ("--firmware", spec.firmware.is_some()),
        ("--initrd", spec.initrd.is_some()),
        ("--append", !spec.append.is_empty()),
        ("--smp", spec.smp.is_some()),
        ("--memory", spec.memory_mib.is_some()),
        ("--pcie-root-ports", spec.pcie_root_ports.is_some()),
        ("--init", spec.init.is_some()),
        ("--root", spec.root.is_some()),
        ("--vmm-arg", !spec.vmm_arg.is_empty()),
    ];
    given.into_iter().find_map(|(option, given)| given.then_some(option))
}

/// After `--` comes a program and its arguments, or, with `--vmm PATH`, only the
/// arguments.
fn full_argv(spec: &MachineSpec) -> Result<Vec<OsString>, MachineError> {
    let first = spec.command.first().map(String::as_str).unwrap_or_default();
    let vmm = spec.vmm.as_deref();
    let is_command = |vmm: &str| {
        let mut named = backend::dialects().filter(|d| d.vmm() == vmm || d.is_named(vmm.as_ref()));
        named.any(|dialect| dialect.commands().contains(&first))
    };
    let program = match vmm {
        None | Some("qemu") if first.starts_with('-') => Some(super::qemu::PROGRAM),
        None | Some("qemu") => None,
        Some(vmm) if first.starts_with('-') || is_command(vmm) => Some(match vmm {
            "kvmtool" => "lkvm",
            path => path,
        }),
        Some(vmm) => {
            return Err(MachineError::Combination(format!(
                "--vmm {vmm}: the command line after `--` already names a program, {first}; \
                 leave out one of the two"
            )));
        }
    };
    let words = program.into_iter().chain(spec.command.iter().map(String::as_str));
    Ok(words.map(Into::into).collect())
}

/// Which VMM it is, by its name; its version, asked in the cheapest way. Whatever else is launched
/// is the user's program, and is asked nothing: what it executes shows then.
fn recognise(machine: &mut Machine, argv: &[OsString], no_inject: bool) -> Option<String> {
    let shown = argv.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let named = backend::dialects()
        .find_map(|dialect| Some((dialect, argv::position(argv, |word| dialect.is_named(word))?)));
    let named = named.and_then(|(dialect, at)| Some((dialect, argv.get(at)?)));
    let Some((dialect, program)) = named else {
        let what = "vmeter does not know this program as a VMM, so it watches the programs that \
            this program executes";
        machine.choose("vmm", shown, what);
        return None;
    };
    // With --no-inject a script is started only as it is given.
    let may_ask = !no_inject || !is_script(program);
    let asked = may_ask.then(|| version_line(program, dialect.version_option(), VERSION_WITHIN));
    let asked = asked.flatten();
    let says_so = asked.as_ref().map_or(!may_ask, |line| dialect.says_so(line));
    let (name, option) = (dialect.vmm(), dialect.version_option());
    let what = match says_so {
        true if !may_ask => format!("{name}: the program's file name says so"),
        true => format!("{name}: the program's file name and version output say so"),
        false => format!(
            "the file name is that of {name}, but the output of {option} does not mention {name}"
        ),
    };
    machine.choose("vmm", shown, what);
    machine.dialect = Some(dialect).filter(|_| says_so);
    asked.filter(|line| !line.trim().is_empty())
}

/// True for a program that is text.
fn is_script(program: &std::ffi::OsStr) -> bool {
    let begins = |path: std::path::PathBuf| {
        let mut begin = [0; 2];
        let mut file = vmeter_base::files::open_regular(&path).ok()?;
        file.read_exact(&mut begin).ok()?;
        Some(&begin == b"#!")
    };
    launch::find_program(program).ok().and_then(begins).unwrap_or(false)
}

/// Asks a QEMU that the command line names further on what it can do, before the first run has to
/// be held for it.
fn ask_ahead(argv: &[OsString], cache: &Path) {
    let named = argv.iter().skip(1).find(|word| Qemu.is_named(word));
    let in_script = || {
        let path = launch::find_program(argv.first()?).ok()?;
        let mut text = Vec::new();
        let file = vmeter_base::files::open_regular(&path).ok()?;
        file.take(64 << 10).read_to_end(&mut text).ok()?;
        let text = String::from_utf8(text).ok().filter(|text| text.starts_with("#!"))?;
        let mut words = text.split(|c: char| c.is_whitespace() || "\"'`()[],;=".contains(c));
        words.find(|word| Qemu.is_named(word.as_ref())).map(OsString::from)
    };
    if let Some(program) = named.cloned().or_else(in_script) {
        // What it is shows at its exec; this is only early.
        let _ = capabilities::of(Path::new(&program), cache);
    }
}

fn explain_injection(machine: &mut Machine, no_inject: bool) {
    let (value, why) = match (no_inject, machine.dialect.is_some()) {
        (true, _) => ("nothing", "--no-inject"),
        (false, true) => (
            "allowed",
            "vmeter prints what it adds. With --no-inject, vmeter adds nothing. An installer may \
             copy kernel parameters such as printk.devkmsg=on to the system that it installs",
        ),
        (false, false) => (
            "allowed",
            "vmeter adds them at the moment when the command starts \
            QEMU",
        ),
    };
    machine.choose("added arguments", value, why);
}

/// What the command line says of its machine, and digests of what is booted.
fn take(machine: &mut Machine, told: ParsedCommandLine, argv: &[OsString], request: &Request<'_>) {
    let (accel, why) = told.accel;
    machine.accel = accel.parse().ok();
    machine.choose("accel", accel, why);
    match told.console {
        Console::Stdout(why) => machine.choose("console", "standard output", why),
        Console::Elsewhere(mend) => {
            match argv::console_file(argv).filter(|(f, _)| argv::is_same_for_all(f)) {
                Some((file, _)) => {
                    let why = "vmeter reads the console's lines from this file";
                    machine.choose("console", file, why);
                }
                None => {
                    let why = format!("vmeter does not see the console's lines; {mend}");
                    machine.choose("console", "elsewhere", why);
                }
            }
        }
        Console::Unsaid(arguments) if machine.may_inject => {
            let why = "the command line does not say where the guest's console goes";
            let added = arguments.join(" ");
            machine.choose("console", "standard output", format!("{why}: {added} is added"));
            machine.console = arguments.iter().map(|a| (*a).to_owned()).collect();
        }
        Console::Unsaid(_) => {}
    }
    for (what, value, why) in told.remarks {
        machine.choose(what, value, why);
    }
    let firmware = told.firmware.and_then(|name| {
        if name.is_file() {
            return Some(name);
        }
        // A bare name is one of QEMU's own files.
        machine.abilities().monitor.then_some(())?;
        let at = argv::position(argv, |word| Qemu.is_named(word)).unwrap_or(0);
        let program = argv.get(at)?;
        // A script is the user's program, which --no-inject starts only as it is given.
        (!request.spec.no_inject || !is_script(program)).then_some(())?;
        let answer = capabilities::of(Path::new(program), request.cache).ok()?;
        answer.capabilities.firmware_file(name.to_str()?)
    });
    let files = [("kernel", told.kernel.clone()), ("initrd", told.initrd), ("firmware", firmware)];
    for (what, file) in files {
        // What cannot be read the VMM will complain of.
        if let Some((file, digest)) = file.and_then(|f| digest(&f).ok().map(|d| (f, d))) {
            machine.provenance.insert(what.into(), format!("{} {digest}", file.display()));
        }
    }
    machine.kernel = told.kernel;
    machine.config = told.config;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn describe(spec: &MachineSpec) -> Result<Machine, MachineError> {
        let cache = tempfile::tempdir().expect("a folder");
        UserCommand.describe(&Request {
            spec,
            cache: cache.path(),
            kernel: None,
            initrd: None,
            root_image: None,
        })
    }

    fn spec(words: &[&str]) -> MachineSpec {
        let command = words.iter().map(|w| (*w).to_owned()).collect();
        MachineSpec { command, ..MachineSpec::default() }
    }

    #[test]
    fn not_qemu() {
        let machine = describe(&spec(&["/bin/echo", "hello"])).expect("echo is there");
        assert!(machine.dialect.is_none() && !machine.may_inject);
        assert_eq!(machine.argv_text(), ["/bin/echo", "hello"]);
        assert!(machine.plan().injected.is_empty());
        assert!(describe(&spec(&["/nonexistent/vmm"])).is_err());
    }

    #[test]
    fn a_wrapper_that_never_says_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("wrapper");
        std::fs::write(&script, "#!/bin/sh\n: qemu-kvm; exec sleep 1000\n").expect("written");
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("executable");
        let machine = describe(&spec(&[script.to_str().expect("UTF-8")])).expect("described");
        assert!(!machine.may_inject);
    }

    #[test]
    fn a_program_is_not_started_to_ask_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = folder.path().join("started");
        let script = folder.path().join("wrapper");
        for (names, no_inject) in [("nothing", false), ("qemu-system-x", true), ("qemu-kvm", false)]
        {
            let text = format!("#!/bin/sh\n: {names}\n: >{}\n", started.display());
            std::fs::write(&script, text).expect("written");
            std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("set");
            let command = spec(&[script.to_str().expect("UTF-8")]);
            describe(&MachineSpec { no_inject, ..command }).expect("described");
            assert!(!started.exists(), "{names}, no_inject {no_inject}");
        }
    }

    #[test]
    fn qemu_and_its_wrappers() {
        if launch::find_program("qemu-system-x86_64".as_ref()).is_err() {
            println!("skipped: qemu-system-x86_64 is not installed");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("my-vmm");
        let content = "#!/bin/sh\nexec qemu-system-x86_64 -display none \"$@\"\n";
        std::fs::write(&script, content).expect("written");
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("executable");
        let path = script.to_str().expect("UTF-8");
        for words in [
            vec!["qemu-system-x86_64", "-M", "q35", "-kernel", "k"],
            vec!["taskset", "-c", "0", "qemu-system-x86_64", "-kernel", "k"],
        ] {
            let machine = describe(&spec(&words)).expect("described");
            assert!(machine.abilities().monitor && machine.may_inject, "{words:?}");
            assert_eq!(machine.accel, Some(vmeter_model::Accel::Tcg));
            assert_eq!(machine.kernel, Some("k".into()));
            assert!(machine.provenance["firmware"].contains("bios-256k.bin sha256:"));
            assert_eq!(machine.plan().injected, ["-serial stdio"]);
            let no = MachineSpec { no_inject: true, ..spec(&words) };
            let machine = describe(&no).expect("described");
            assert!(machine.abilities().monitor && !machine.may_inject);
            assert_eq!(machine.plan().argv.len(), words.len(), "run as given");
        }
        let wrapper = describe(&spec(&[path, "-kernel", "k"])).expect("described");
        assert!(wrapper.dialect.is_none() && !wrapper.may_inject, "known at its exec");
        let lent = |words: &[&str], file: &std::path::Path| {
            describe(&MachineSpec { kernel: Some(file.into()), ..spec(words) })
        };
        let kernel = folder.path().join("vmlinuz");
        std::fs::write(&kernel, b"\x7fELF and the rest").expect("written");
        let disk = ["qemu-system-x86_64", "-drive", "file=disk.img"];
        let machine = lent(&disk, &kernel).expect("described");
        assert_eq!(machine.kernel.as_deref(), Some(kernel.as_path()));
        assert_eq!(machine.argv_text(), disk);
        assert!(lent(&["qemu-system-x86_64", "-kernel", "k"], &kernel).is_err());
        assert!(lent(&disk, &script).is_err(), "no kernel");
        let only = MachineSpec { vmm: Some(path.into()), ..spec(&["-M", "q35"]) };
        assert_eq!(describe(&only).expect("described").argv_text(), [path, "-M", "q35"]);
    }
}
