//! crosvm (`crosvm run`): a machine on its command line, its kernel a word of its own, the
//! kernel's words by `--params`, which may be there several times.
//!
//! Sandboxed, it starts a process for each device. It powers off by ACPI.

use super::direct::Describing;
use crate::argv::{self, option};
use crate::backend::{Backend, Machine, MachineError, Needs, Request};
use crate::files::{kernel_kind, KernelKind};
use crate::vmm::{Abilities, ConfigFile, Console, Dialect, ParsedCommandLine};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use vmeter_model::MachineSpec;

/// The back end, and how crosvm is spoken to.
#[derive(Debug)]
pub struct Crosvm;

const PROGRAM: &str = "crosvm";
const RUN: &str = "run";
/// What any KVM takes; crosvm itself knows no bound.
const MOST_VCPUS: u32 = 255;
const SERIAL: &str = "type=stdout,hardware=serial,num=1,console";

impl Backend for Crosvm {
    fn name(&self) -> &'static str {
        PROGRAM
    }

    fn needs(&self, _: &MachineSpec) -> Needs {
        Needs::Vmlinux { pvh: false }
    }

    fn dialect(&self) -> Option<&'static dyn Dialect> {
        Some(&Crosvm)
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let mut d = Describing::new(request, PROGRAM, None, &Crosvm)?;
        d.accel()?;
        let (smp, memory) = d.size(MOST_VCPUS)?;
        d.machine.choose("console", "ttyS0 on standard output", format!("--serial {SERIAL}"));
        let why = "--disable-sandbox: crosvm then starts no separate process per device, and \
            needs no rights for a sandbox";
        d.machine.choose("sandbox", "none", why);
        let (kernel, initrd) = d.kernel(KernelKind::Vmlinux)?;
        let line = d.command_line(&[]);
        let argv = &mut d.machine.argv;
        argv.extend([RUN, "--disable-sandbox", "--serial", SERIAL].map(OsString::from));
        argv.extend(["--cpus", &smp.to_string(), "--mem", &memory.to_string()].map(OsString::from));
        argv.extend(["--params", &line].map(OsString::from));
        if let Some(initrd) = initrd {
            argv.extend(["--initrd".into(), initrd.into()]);
        }
        argv.push(kernel.into());
        Ok(d.machine)
    }
}

impl Dialect for Crosvm {
    fn vmm(&self) -> &'static str {
        PROGRAM
    }

    fn mend(&self) -> &'static str {
        "build it, or give its path"
    }

    fn is_named(&self, program: &OsStr) -> bool {
        argv::is_program(program, PROGRAM)
    }

    fn version_option(&self) -> &'static str {
        "version"
    }

    fn says_so(&self, version_line: &str) -> bool {
        version_line.starts_with("crosvm ")
    }

    fn commands(&self) -> &'static [&'static str] {
        &[RUN]
    }

    fn restores(&self, argv: &[OsString]) -> Option<&'static str> {
        argv::long(argv, "restore").map(|_| "--restore")
    }

    fn abilities(&self) -> Abilities {
        Abilities { image: Some(PROGRAM), ..Abilities::default() }
    }

    fn read(&self, argv: &[OsString]) -> ParsedCommandLine {
        let restored = self.restores(argv).is_some();
        let on_stdout = argv::values(argv, "serial").iter().any(|v| v.contains("type=stdout"));
        ParsedCommandLine {
            accel: (
                "kvm".into(),
                "the default of this VMM on Linux, unless this VMM was built with another \
                    default",
            ),
            kernel: kernel(argv).filter(|_| !restored),
            initrd: option(argv, ("initrd", "i")).map(|(_, file)| PathBuf::from(file)),
            firmware: option(argv, ("bios", "")).map(|(_, file)| PathBuf::from(file)),
            console: if on_stdout {
                Console::Stdout("--serial type=stdout")
            } else {
                Console::Elsewhere("add --serial type=stdout,hardware=serial,num=1,console")
            },
            config: None,
            remarks: Vec::new(),
        }
    }

    fn kernel_line(&self, argv: &[OsString], _: Option<&ConfigFile>) -> Option<String> {
        kernel(argv)?;
        let long = argv::values(argv, "params").into_iter();
        Some(long.chain(argv::values(argv, "p")).collect::<Vec<_>>().join(" "))
    }

    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        _: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool {
        let run = argv.iter().position(|word| word == RUN);
        let Some(run) = run.filter(|_| kernel(argv).is_some()) else { return false };
        if let Some((at, line)) = option(argv, ("params", "p")) {
            let line = argv::with_kernel_words(line, words);
            argv::set_long(argv, at, &line);
        } else {
            argv.splice(run + 1..=run, ["--params", words].map(OsString::from));
        }
        true
    }
}

/// The kernel, among the words after `run`: which options take a value is known to crosvm
/// alone, so the last that is a kernel by its first bytes and no option's value.
fn kernel(argv: &[OsString]) -> Option<PathBuf> {
    let run = argv.iter().position(|word| word == RUN)?;
    let is_one = |path: &Path| matches!(kernel_kind(path), Ok(kind) if kind != KernelKind::Other);
    let others = ["--bios", "--initrd", "-i"];
    (run + 1..argv.len())
        .rev()
        .filter(|at| !others.iter().any(|option| argv[at - 1] == *option))
        .map(|at| PathBuf::from(&argv[at]))
        .find(|path| is_one(path))
}
