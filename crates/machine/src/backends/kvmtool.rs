//! kvmtool (`lkvm run`): a machine on its command line, its kernel's by `--params`.
//!
//! It enters a bzImage itself, through its real-mode setup code, and puts words of its own
//! before the user's (its `x86/kvm.c`, `builtin-run.c`): 2,048 bytes in all. There is no ACPI
//! to power off, and the keyboard controller's reset is the end.

use super::direct::Describing;
use crate::argv::{self, option};
use crate::backend::{Backend, Machine, MachineError, Needs, Request};
use crate::files::KernelKind;
use crate::vmm::{Abilities, ConfigFile, Console, Dialect, ParsedCommandLine, EXITS_BY_RESET};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use vmeter_model::MachineSpec;

/// The back end, and how kvmtool is spoken to.
#[derive(Debug)]
pub struct Kvmtool;

const NAME: &str = "kvmtool";
const PROGRAM: &str = "lkvm";
/// What any KVM takes; kvmtool itself knows no bound.
const MOST_VCPUS: u32 = 255;
const KERNEL: (&str, &str) = ("kernel", "k");
const INITRD: (&str, &str) = ("initrd", "i");
const PARAMS: (&str, &str) = ("params", "p");

impl Backend for Kvmtool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn accepts(&self, spec: &MachineSpec) -> bool {
        spec.vmm.as_deref().is_some_and(|vmm| vmm == NAME || self.is_named(vmm.as_ref()))
    }

    fn needs(&self, _: &MachineSpec) -> Needs {
        Needs::Kernel
    }

    fn dialect(&self) -> Option<&'static dyn Dialect> {
        Some(&Kvmtool)
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let program = if request.spec.vmm.as_deref() == Some(NAME) { Some(PROGRAM) } else { None };
        let mut d = Describing::new(request, NAME, program, &Kvmtool)?;
        d.accel()?;
        let (smp, memory) = d.size(MOST_VCPUS)?;
        d.machine.choose("console", "ttyS0 on standard output", "--console serial");
        let (kernel, initrd) = d.kernel(KernelKind::BzImage)?;
        let why = "without ACPI, the guest cannot power off";
        let reset = request.own_init().then_some((EXITS_BY_RESET, why));
        let line = d.command_line(reset.as_slice());
        let argv = &mut d.machine.argv;
        argv.extend(["run", "--console", "serial", "--network", "mode=none"].map(OsString::from));
        argv.extend(["--kernel".into(), kernel.into()]);
        if let Some(initrd) = initrd {
            argv.extend(["--initrd".into(), initrd.into()]);
        }
        argv.extend(["--params", &line].map(OsString::from));
        argv.extend(["--cpus", &smp.to_string(), "--mem", &memory.to_string()].map(OsString::from));
        Ok(d.machine)
    }
}

impl Dialect for Kvmtool {
    fn vmm(&self) -> &'static str {
        NAME
    }

    fn mend(&self) -> &'static str {
        "build kvmtool, or give the path of its lkvm"
    }

    fn is_named(&self, program: &OsStr) -> bool {
        argv::is_program(program, PROGRAM) || argv::is_program(program, NAME)
    }

    fn says_so(&self, version_line: &str) -> bool {
        version_line.starts_with("kvm tool ")
    }

    fn commands(&self) -> &'static [&'static str] {
        &["run", "sandbox"]
    }

    fn abilities(&self) -> Abilities {
        Abilities { image: Some(PROGRAM), ..Abilities::default() }
    }

    fn read(&self, argv: &[OsString]) -> ParsedCommandLine {
        let named = |names| option(argv, names).map(|(_, file)| PathBuf::from(file));
        let console = match option(argv, ("console", "")) {
            Some((_, value)) if value == "serial" => Console::Stdout("--console serial"),
            Some((_, value)) if value != "virtio" => {
                Console::Elsewhere("add --console serial to see them")
            }
            // Its own default, and what its kernel is told.
            _ => Console::Stdout("by default; --console virtio is hvc0"),
        };
        ParsedCommandLine {
            accel: ("kvm".into(), "kvmtool knows nothing else"),
            kernel: named(KERNEL),
            initrd: named(INITRD),
            firmware: named(("firmware", "f")),
            console,
            config: None,
            remarks: Vec::new(),
        }
    }

    fn kernel_line(&self, argv: &[OsString], _: Option<&ConfigFile>) -> Option<String> {
        option(argv, KERNEL)?;
        let line = option(argv, PARAMS).map(|(_, line)| line.to_string_lossy());
        Some(line.unwrap_or_default().into_owned())
    }

    fn ends_by_reset(&self, _: &[OsString], _: Option<&ConfigFile>) -> bool {
        true
    }

    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        _: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool {
        if option(argv, KERNEL).is_none() {
            return false;
        }
        if let Some((at, line)) = option(argv, PARAMS) {
            let line = argv::with_kernel_words(line, words);
            argv::set_long(argv, at, &line);
        } else {
            argv.extend(["--params", words].map(OsString::from));
        }
        true
    }
}
