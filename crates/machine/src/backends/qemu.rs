//! A specification as a QEMU command line.
//!
//! The machine is bare (`-nodefaults -no-user-config`): what the guest finds is
//! what the command line says, whatever the host's configuration files hold.

mod machine;

use crate::argv;
use crate::backend::{Backend, Machine, MachineError, Needs, Request};
use crate::capabilities;
use crate::output::version_line;
use crate::vmm::{exits_by_reset, Abilities, ConfigFile, Console, Dialect, ParsedCommandLine};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;
use vmeter_model::MachineSpec;

/// The back end, and how QEMU is spoken to.
#[derive(Debug)]
pub struct Qemu;

/// How long an unknown program may take to say its version. QEMU takes 15 ms; a
/// wrapper that ignores its arguments boots a machine, and is ended after this.
pub(crate) const VERSION_WITHIN: Duration = Duration::from_secs(3);

/// QEMU's names of the architectures that have I/O ports as a PC has them.
const X86: [&str; 2] = ["x86_64", "i386"];

/// What is executed where nothing else is asked for.
pub const PROGRAM: &str = "qemu-system-x86_64";

impl Backend for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn accepts(&self, spec: &MachineSpec) -> bool {
        match spec.vmm.as_deref() {
            None | Some("qemu") => true,
            Some(program) if argv::is_qemu_name(program.as_ref()) => true,
            // A build of another name, or a wrapper, that says so itself.
            Some(path) if path.contains('/') => {
                version_line(path.as_ref(), self.version_option(), VERSION_WITHIN)
                    .is_some_and(|line| self.says_so(&line))
            }
            Some(_) => false,
        }
    }

    fn needs(&self, spec: &MachineSpec) -> Needs {
        match spec.machine.as_deref() {
            Some("pvh" | "microvm") => Needs::Vmlinux { pvh: true },
            _ => Needs::Kernel,
        }
    }

    fn dialect(&self) -> Option<&'static dyn Dialect> {
        Some(&Qemu)
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        machine::describe(self, request)
    }
}

impl Dialect for Qemu {
    fn vmm(&self) -> &'static str {
        "QEMU"
    }

    fn mend(&self) -> &'static str {
        "install it (on Debian: apt-get install qemu-system-x86) or give its path"
    }

    fn is_named(&self, program: &OsStr) -> bool {
        argv::is_qemu_name(program)
    }

    fn version_option(&self) -> &'static str {
        "-version"
    }

    fn says_so(&self, version_line: &str) -> bool {
        capabilities::is_qemu(version_line)
    }

    fn is_probe(&self, argv: &[OsString]) -> bool {
        let asks = ["version", "help", "h"].iter().any(|option| argv::has(argv, option));
        let boards = ["machine", "M"].map(|option| argv::values(argv, option));
        let none = |value: &&str| {
            let mut parts = value.split(',');
            parts.any(|part| part.trim_start_matches("type=") == "none")
        };
        // As a value, or behind a device's name: `-device virtio-net,help`.
        let lists = |word: &OsString| {
            let parts = word.to_string_lossy();
            parts.split(',').next_back().is_some_and(|last| last == "help" || last == "?")
        };
        asks || boards.iter().flatten().any(none) || argv.iter().skip(1).any(lists)
    }

    fn restores(&self, argv: &[OsString]) -> Option<&'static str> {
        // What waits to be told where from (`-incoming defer`) is restored as well.
        ["loadvm", "incoming"].into_iter().find(|option| argv::has(argv, option)).map(|option| {
            if option == "loadvm" {
                "-loadvm"
            } else {
                "-incoming"
            }
        })
    }

    fn is_x86(&self, argv: &[OsString]) -> bool {
        let program = argv.iter().find(|word| argv::is_qemu_name(word));
        program.and_then(|word| argv::architecture(word)).is_none_or(|of| X86.contains(&of))
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            trace_events: true,
            plugins: true,
            firmware_log: true,
            monitor: true,
            event_monitor: false,
            ram_at_exit: true,
            api: None,
            restored: None,
            image: Some("qemu-system"),
        }
    }

    fn read(&self, argv: &[OsString]) -> ParsedCommandLine {
        let console = if argv::console_on_stdout(argv) {
            Console::Stdout("the command line selects this output")
        } else if argv::values(argv, "device").iter().any(|d| d.starts_with("virtconsole")) {
            Console::Elsewhere("set the virtconsole's chardev to stdio to see its lines")
        } else if argv::says_console(argv) {
            Console::Elsewhere("add -serial stdio to see them")
        } else if argv::stdio_is_taken(argv) {
            Console::Elsewhere("another option takes standard output")
        } else {
            Console::Unsaid(&["-serial", "stdio"])
        };
        let named = |option: &str| argv::values(argv, option).last().map(PathBuf::from);
        ParsedCommandLine {
            accel: (argv::accelerator(argv), "as the command line says"),
            kernel: named("kernel"),
            initrd: named("initrd"),
            firmware: Some(argv::firmware(argv).into()),
            console,
            config: None,
            remarks: Vec::new(),
        }
    }

    fn kernel_line(&self, argv: &[OsString], _: Option<&ConfigFile>) -> Option<String> {
        position(argv, "-kernel")?;
        let line = position(argv, "-append").and_then(|at| argv.get(at + 1));
        Some(line.map(|line| line.to_string_lossy().into_owned()).unwrap_or_default())
    }

    fn ends_by_reset(&self, argv: &[OsString], config: Option<&ConfigFile>) -> bool {
        let machines = ["machine", "M"].map(|option| argv::values(argv, option));
        let without_acpi = |value: &str| {
            let mut parts = value.split(',');
            let board = parts.next().unwrap_or_default();
            board.trim_start_matches("type=") == "microvm" && parts.any(|part| part == "acpi=off")
        };
        // docs/system/i386/microvm.rst: `-no-reboot`, and a kernel that restarts by a triple fault.
        let triple = |line: String| line.split(' ').any(|word| word == "reboot=t");
        let line = self.kernel_line(argv, config);
        argv::has(argv, "no-reboot") && line.clone().is_some_and(triple)
            || exits_by_reset(line)
            || machines.iter().flatten().any(|value| without_acpi(value))
    }

    fn ends_at_restart(&self, argv: &[OsString]) -> bool {
        let shuts_down = |value: &str| value.split(',').any(|part| part == "reboot=shutdown");
        argv::has(argv, "no-reboot")
            || argv::values(argv, "action").iter().any(|value| shuts_down(value))
    }

    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        _: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool {
        let line = position(argv, "-append").filter(|at| at + 1 < argv.len());
        if let Some(at) = line {
            argv[at + 1] = argv::with_kernel_words(&argv[at + 1], words);
        } else if position(argv, "-kernel").is_some() {
            argv.extend(["-append", words].map(OsString::from));
        } else {
            return false;
        }
        true
    }
}

/// Where an option is; QEMU takes one dash or two.
fn position(argv: &[OsString], name: &str) -> Option<usize> {
    let double = format!("-{name}");
    argv.iter().position(|a| a == name || *a == *double)
}
