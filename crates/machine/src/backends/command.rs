//! A command line of the user's own, run as given.
//!
//! What is QEMU is recognised, by its name or by its own word (`-version`), so
//! that a wrapper script that executes it is treated as QEMU too. Anything else
//! is launched and watched from outside: its own moments and its console.

use crate::argv;
use crate::backend::{Backend, Machine, MachineError, Request};
use crate::capabilities::{self, is_qemu};
use crate::files::digest;
use crate::launch::{self, LaunchError};
use crate::output::version_line;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_model::MachineSpec;

/// The back end.
pub struct UserCommand;

/// How long an unknown program may take to say its version. QEMU takes 15 ms; a
/// wrapper that ignores its arguments boots a machine, and is ended after this.
const VERSION_WITHIN: Duration = Duration::from_secs(3);

impl Backend for UserCommand {
    fn name(&self) -> &'static str {
        "command"
    }

    fn accepts(&self, spec: &MachineSpec) -> bool {
        !spec.command.is_empty()
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let spec = request.spec;
        if let Some(option) = ignored(spec) {
            return Err(MachineError::Combination(format!(
                "{option}: a command line after `--` is run as given; say it there"
            )));
        }
        let argv = full_argv(spec);
        let program = argv.first().ok_or(LaunchError::Empty)?;
        let program = launch::find_program(program)?;
        let mut machine = Machine { backend: self.name(), ..Machine::default() };
        let version = recognise(&mut machine, &argv);
        machine.is_qemu = version.as_deref().is_some_and(is_qemu);
        machine.may_inject = machine.is_qemu && !spec.no_inject;
        explain_injection(&mut machine, spec.no_inject);
        let version = version.unwrap_or_else(|| "version unknown".into());
        machine.provenance.insert("vmm".into(), format!("{version} ({})", program.display()));
        if machine.is_qemu {
            of_qemu(&mut machine, &argv);
            files(&mut machine, &argv, request);
        }
        machine.argv = argv;
        Ok(machine)
    }
}

/// An option that describes a machine of vmeter's own, which this is not.
fn ignored(spec: &MachineSpec) -> Option<&'static str> {
    let given = [
        ("--accel", spec.accel.is_some()),
        ("--machine", spec.machine.is_some()),
        ("--firmware", spec.firmware.is_some()),
        ("--kernel", spec.kernel.is_some()),
        ("--initrd", spec.initrd.is_some()),
        ("--append", !spec.append.is_empty()),
        ("--smp", spec.smp.is_some()),
        ("--memory", spec.memory_mib.is_some()),
        ("--pcie-root-ports", spec.pcie_root_ports.is_some()),
        ("--init", spec.init.is_some()),
        ("--root", spec.root.is_some()),
    ];
    given.into_iter().find_map(|(option, given)| given.then_some(option))
}

/// After `--` comes a program and its arguments, or, with `--vmm PATH`, only the
/// arguments.
fn full_argv(spec: &MachineSpec) -> Vec<OsString> {
    let only_arguments = spec.command.first().is_some_and(|w| w.starts_with('-'));
    let program = match spec.vmm.as_deref() {
        _ if !only_arguments => None,
        None | Some("qemu") => Some("qemu-system-x86_64"),
        Some(path) => Some(path),
    };
    program.into_iter().chain(spec.command.iter().map(String::as_str)).map(Into::into).collect()
}

/// What the VMM says it is, asked in the cheapest way.
fn recognise(machine: &mut Machine, argv: &[OsString]) -> Option<String> {
    let shown = argv.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let position = argv::qemu_position(argv);
    let asked = position.map_or(0, |at| at);
    let version = argv.get(asked).and_then(|program| version_line(program, VERSION_WITHIN));
    let what = match (position, version.as_deref().is_some_and(is_qemu)) {
        (Some(_), true) => "QEMU, by its name and version",
        (Some(_), false) => "QEMU by its name, but not by its -version",
        (None, true) => "executes QEMU, as its -version says",
        (None, false) => "not QEMU: watched from outside, by its process and its console",
    };
    machine.choose("vmm", shown, what);
    version.filter(|line| !line.trim().is_empty())
}

fn explain_injection(machine: &mut Machine, no_inject: bool) {
    let (value, why) = match (machine.is_qemu, no_inject) {
        (true, false) => ("allowed", "what is added is printed; --no-inject adds nothing"),
        (true, true) => ("nothing", "--no-inject"),
        (false, _) => ("nothing", "only QEMU's options are known"),
    };
    machine.choose("added arguments", value, why);
}

fn of_qemu(machine: &mut Machine, argv: &[OsString]) {
    let accel = argv::accelerator(argv);
    machine.accel = accel.parse().ok();
    machine.choose("accel", accel, "as the command line says");
    machine.kernel = argv::kernel(argv);
    if argv::console_on_stdout(argv) {
        machine.choose("console", "standard output", "as the command line says");
    } else if argv::says_console(argv) {
        let why = "its lines are not seen; add -serial stdio to see them";
        machine.choose("console", "elsewhere", why);
    } else if machine.may_inject {
        machine.console = vec!["-serial".into(), "stdio".into()];
        let why = "the command line does not say where it goes: -serial stdio is added";
        machine.choose("console", "standard output", why);
    }
}

/// Digests of what is booted, as far as the files can be told from the options.
fn files(machine: &mut Machine, argv: &[OsString], request: &Request<'_>) {
    let named = |option: &str| argv::values(argv, option).last().map(PathBuf::from);
    let qemu = argv.get(argv::qemu_position(argv).unwrap_or(0)).map(Path::new);
    let firmware = || {
        let name = named("bios").unwrap_or_else(|| "bios-256k.bin".into());
        if name.is_file() {
            return Some(name);
        }
        let answer = capabilities::of(qemu?, request.cache).ok()?;
        answer.capabilities.firmware_file(name.to_str()?)
    };
    for (what, file) in
        [("kernel", named("kernel")), ("initrd", named("initrd")), ("firmware", firmware())]
    {
        // What cannot be read QEMU will complain of.
        if let Some((file, digest)) = file.and_then(|f| digest(&f).ok().map(|d| (f, d))) {
            machine.provenance.insert(what.into(), format!("{} {digest}", file.display()));
        }
    }
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
        assert!(!machine.is_qemu && !machine.may_inject);
        assert_eq!(machine.argv_text(), ["/bin/echo", "hello"]);
        assert!(machine.plan().injected.is_empty());
        assert!(describe(&spec(&["/nonexistent/vmm"])).is_err());
    }

    #[test]
    fn a_wrapper_that_never_says_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("wrapper");
        std::fs::write(&script, "#!/bin/sh\nexec sleep 1000\n").expect("written");
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("executable");
        let machine = describe(&spec(&[script.to_str().expect("UTF-8")])).expect("described");
        assert!(!machine.may_inject);
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
            vec![path, "-M", "q35", "-kernel", "k"],
            vec!["taskset", "-c", "0", "qemu-system-x86_64", "-kernel", "k"],
        ] {
            let machine = describe(&spec(&words)).expect("described");
            assert!(machine.is_qemu && machine.may_inject, "{words:?}");
            assert_eq!(machine.accel, Some(vmeter_model::Accel::Tcg));
            assert_eq!(machine.kernel, Some("k".into()));
            assert!(machine.provenance["firmware"].contains("bios-256k.bin sha256:"));
            assert_eq!(machine.plan().injected, ["-serial stdio"]);
            let no = MachineSpec { no_inject: true, ..spec(&words) };
            let machine = describe(&no).expect("described");
            assert!(machine.is_qemu && !machine.may_inject);
            assert_eq!(machine.plan().argv.len(), words.len(), "run as given");
        }
        let only = MachineSpec { vmm: Some(path.into()), ..spec(&["-M", "q35"]) };
        assert_eq!(describe(&only).expect("described").argv_text(), [path, "-M", "q35"]);
    }
}
