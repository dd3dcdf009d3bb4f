//! cloud-hypervisor: a machine on its command line, its kernel's by `--cmdline`.
//!
//! The kernel is entered by PVH. `--serial tty` puts the first serial port on standard
//! output; without it the guest's console is a virtio one, which a kernel whose driver is
//! a module can write to only after that is loaded.

use super::direct::Describing;
use crate::argv;
use crate::backend::{Backend, Machine, MachineError, Needs, Request};
use crate::files::KernelKind;
use crate::snapshots::{and, only, without, Request as ApiRequest, Snapshots, SOCKET};
use crate::vmm::{Abilities, ConfigFile, Console, Dialect, ParsedCommandLine};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use vmeter_model::MachineSpec;

/// The back end, and how cloud-hypervisor is spoken to.
#[derive(Debug)]
pub struct CloudHypervisor;

const PROGRAM: &str = "cloud-hypervisor";
/// Its `--cpus boot=` is a byte.
const MOST_VCPUS: u32 = 254;
/// A guest tells there how far it is (its docs/debug-port.md). Linux, which waits by writes to
/// this port elsewhere, does not in a guest of KVM's.
const DEBUG_PORT: u32 = 0x80;

impl Backend for CloudHypervisor {
    fn name(&self) -> &'static str {
        PROGRAM
    }

    fn needs(&self, _: &MachineSpec) -> Needs {
        Needs::Vmlinux { pvh: true }
    }

    fn dialect(&self) -> Option<&'static dyn Dialect> {
        Some(&CloudHypervisor)
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let mut d = Describing::new(request, PROGRAM, None, &CloudHypervisor)?;
        d.accel()?;
        let (smp, memory) = d.size(MOST_VCPUS)?;
        d.machine.choose("console", "ttyS0 on standard output", "--serial tty");
        let (kernel, initrd) = d.kernel(KernelKind::Vmlinux)?;
        let line = d.command_line(&[]);
        let argv = &mut d.machine.argv;
        argv.extend(["--kernel".into(), kernel.into()]);
        if let Some(initrd) = initrd {
            argv.extend(["--initramfs".into(), initrd.into()]);
        }
        argv.extend(["--cmdline", &line].map(OsString::from));
        argv.extend(["--cpus".into(), format!("boot={smp}").into()]);
        argv.extend(["--memory".into(), format!("size={memory}M").into()]);
        argv.extend(["--serial", "tty", "--console", "off"].map(OsString::from));
        Ok(d.machine)
    }
}

impl Dialect for CloudHypervisor {
    fn vmm(&self) -> &'static str {
        "cloud-hypervisor"
    }

    fn snapshots(&self) -> Option<&'static dyn Snapshots> {
        Some(&CloudHypervisor)
    }

    fn is_told_of_boot(&self) -> bool {
        true
    }

    fn is_named(&self, program: &OsStr) -> bool {
        argv::is_program(program, PROGRAM)
    }

    fn says_so(&self, version_line: &str) -> bool {
        version_line.starts_with("cloud-hypervisor ")
    }

    fn restores(&self, argv: &[OsString]) -> Option<&'static str> {
        argv::long(argv, "restore").map(|_| "--restore")
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            api: Some("--api-socket"),
            image: Some(PROGRAM),
            event_monitor: true,
            ..Abilities::default()
        }
    }

    fn debug_code(&self, port: u32, value: u8) -> Option<String> {
        let of = match value {
            0..=0x1f => "firmware",
            0x20..=0x3f => "boot loader",
            0x40..=0x5f => "kernel",
            0x60..=0x7f => "user space",
            0x80.. => "custom",
        };
        (port == DEBUG_PORT)
            .then(|| format!("cloud-hypervisor's debug port: {of}, code {value:#04x}"))
    }

    fn read(&self, argv: &[OsString]) -> ParsedCommandLine {
        let named = |option: &str| argv::long(argv, option).map(|(_, file)| PathBuf::from(file));
        let mut told = ParsedCommandLine {
            accel: (
                "kvm".into(),
                "the default of this VMM on Linux, unless this VMM was built with another \
                    default",
            ),
            kernel: named("kernel"),
            initrd: named("initramfs"),
            firmware: named("firmware"),
            console: console(argv),
            config: None,
            remarks: Vec::new(),
        };
        if self.restores(argv).is_some() {
            told.kernel = None;
        } else if told.kernel.is_none() && told.firmware.is_none() {
            let why = "vmeter does not see the requests to the VMM's API, so it knows no kernel \
                to read symbols from and cannot add kernel parameters; start the VMM with \
                --kernel and --cmdline";
            told.remarks.push(("configuration", "by the API".into(), why.into()));
        }
        told
    }

    fn kernel_line(&self, argv: &[OsString], _: Option<&ConfigFile>) -> Option<String> {
        argv::long(argv, "kernel")?;
        let line = argv::long(argv, "cmdline").map(|(_, line)| line.to_string_lossy());
        Some(line.unwrap_or_default().into_owned())
    }

    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        _: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool {
        if argv::long(argv, "kernel").is_none() {
            return false;
        }
        if let Some((at, line)) = argv::long(argv, "cmdline") {
            let line = argv::with_kernel_words(line, words);
            argv::set_long(argv, at, &line);
        } else {
            argv.extend(["--cmdline", words].map(OsString::from));
        }
        true
    }
}

/// What is said of the VMM's process, and not of its machine, which is in its snapshot.
const OF_PROCESS: [&str; 4] = ["event-monitor", "log-file", "log-format", "seccomp"];
const FLAGS_OF_PROCESS: [&str; 2] = ["landlock", "no-shutdown"];

/// The requests of cloud-hypervisor's `docs/snapshot_restore.md` and `docs/api.md`.
impl Snapshots for CloudHypervisor {
    fn methods(&self) -> &'static [&'static str] {
        &["copy", "on-demand"]
    }

    fn maps(&self, _: &str) -> bool {
        false
    }

    fn with_api(&self, argv: &[OsString]) -> Vec<OsString> {
        and(without(argv, &["api-socket"], &[]), "--api-socket", SOCKET)
    }

    fn save(&self, image: &Path) -> Vec<ApiRequest> {
        let target = json!({ "destination_url": format!("file://{}", image.display()) });
        vec![
            ApiRequest::bare("PUT", "/api/v1/vm.pause"),
            ApiRequest::new("PUT", "/api/v1/vm.snapshot", &target),
        ]
    }

    fn restored(&self, method: &str, argv: &[OsString], image: &Path) -> Vec<OsString> {
        let mode = if method == "on-demand" { ",memory_restore_mode=ondemand" } else { "" };
        let source = format!("source_url=file://{},resume=true{mode}", image.display());
        let program = argv::position(argv, |word| self.is_named(word)).unwrap_or_default();
        let (mut restored, rest) = (argv[..=program].to_vec(), &argv[program + 1..]);
        restored.extend(only(rest, &OF_PROCESS, &FLAGS_OF_PROCESS));
        and(restored, "--restore", source)
    }

    fn load(&self, _: &str, _: &Path) -> Vec<ApiRequest> {
        Vec::new()
    }
}

/// By default the serial port is nowhere, and the virtio console on standard output.
fn console(argv: &[OsString]) -> Console {
    let is_tty = |option: &str| argv::long(argv, option).map(|(_, value)| value == "tty");
    match (is_tty("serial"), is_tty("console")) {
        (Some(true), _) => Console::Stdout("--serial tty"),
        (_, None) => Console::Stdout(
            "the virtio console (hvc0), because --serial tty is not \
            given",
        ),
        (_, Some(true)) => Console::Stdout("--console tty"),
        (_, Some(false)) => Console::Elsewhere("add --serial tty to see them"),
    }
}
