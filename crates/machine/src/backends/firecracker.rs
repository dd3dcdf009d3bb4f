//! Firecracker: a machine in a JSON file, told by `--no-api --config-file FILE`.
//!
//! Its fields are those of Firecracker's `src/vmm/src/resources.rs` (`VmmConfig`). The
//! console is on standard output, mixed with Firecracker's own log lines. A guest ends
//! by a reset of the keyboard controller (`reboot=k`), for there is no ACPI to power off.

use super::direct::Describing;
use crate::argv;
use crate::backend::{Backend, Machine, MachineError, Needs, Request};
use crate::files::KernelKind;
use crate::snapshots::{and, without, Request as ApiRequest, Snapshots, HANDLER, SOCKET};
use crate::vmm::{Abilities, ConfigFile, Console, Dialect, ParsedCommandLine, EXITS_BY_RESET};
use serde_json::{json, Value};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use vmeter_model::MachineSpec;

/// The back end, and how Firecracker is spoken to.
#[derive(Debug)]
pub struct Firecracker;

const PROGRAM: &str = "firecracker";
/// The configuration in a run's folder.
const FILE: &str = "firecracker.json";
/// `MAX_SUPPORTED_VCPUS` of Firecracker's `vmm_config/machine_config.rs`.
const MOST_VCPUS: u32 = 32;
/// How the stamps of its log begin.
const SECONDS: &str = "0000-00-00T00:00:00.";
/// No configuration that anybody writes is larger.
const MAX_CONFIG: u64 = 4 << 20;

impl Backend for Firecracker {
    fn name(&self) -> &'static str {
        PROGRAM
    }

    fn needs(&self, _: &MachineSpec) -> Needs {
        Needs::Vmlinux { pvh: false }
    }

    fn dialect(&self) -> Option<&'static dyn Dialect> {
        Some(&Firecracker)
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let mut d = Describing::new(request, PROGRAM, None, &Firecracker)?;
        d.accel()?;
        let (smp, memory) = d.size(MOST_VCPUS)?;
        d.machine.choose("console", "ttyS0 on standard output", "Firecracker has no other");
        let (kernel, initrd) = d.kernel(KernelKind::Vmlinux)?;
        let mut board = vec![
            (
                "reboot=k",
                "without ACPI, the guest ends its machine with a reset through the keyboard \
                 controller",
            ),
            ("pci=off", "this machine has no PCI bus"),
        ];
        if request.own_init() {
            board.push((EXITS_BY_RESET, ""));
        }
        let line = d.command_line(&board);
        let mut source = json!({ "kernel_image_path": text(kernel)?, "boot_args": line });
        if let Some(initrd) = initrd {
            source["initrd_path"] = text(initrd)?.into();
        }
        let content = json!({
            "boot-source": source,
            // Demanded also where there are none.
            "drives": [],
            "machine-config": { "vcpu_count": smp, "mem_size_mib": memory },
        });
        d.machine.argv.extend(["--no-api", "--config-file", FILE].map(OsString::from));
        d.machine.config =
            Some(ConfigFile { argument: 3, name: FILE, content, given: None, changed: false });
        Ok(d.machine)
    }
}

fn text(path: &Path) -> Result<&str, MachineError> {
    path.to_str().ok_or_else(|| {
        MachineError::Combination(format!("{}: JSON needs a path in UTF-8", path.display()))
    })
}

impl Dialect for Firecracker {
    fn vmm(&self) -> &'static str {
        "Firecracker"
    }

    fn snapshots(&self) -> Option<&'static dyn Snapshots> {
        Some(&Firecracker)
    }

    fn is_told_of_boot(&self) -> bool {
        true
    }

    fn is_named(&self, program: &OsStr) -> bool {
        argv::is_program(program, PROGRAM)
    }

    fn says_so(&self, version_line: &str) -> bool {
        version_line.starts_with("Firecracker v")
    }

    fn abilities(&self) -> Abilities {
        Abilities { api: Some("--api-sock"), image: Some(PROGRAM), ..Abilities::default() }
    }

    /// `2026-08-21T12:08:08.123456789 [anonymous-instance:main] Running Firecracker` (its
    /// src/vmm/src/logger/logging.rs), of one of its threads.
    fn own_words<'l>(&self, line: &'l str) -> Option<&'l str> {
        let (stamp, rest) = line.split_once(" [")?;
        let (who, words) = rest.split_once("] ")?;
        let is_stamp = stamp.len() > SECONDS.len()
            && stamp.bytes().zip(SECONDS.bytes()).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                _ => byte == form,
            });
        let thread = who.split(':').nth(1)?;
        (is_stamp && (thread == "main" || thread.starts_with("fc_"))).then_some(words)
    }

    fn read(&self, argv: &[OsString]) -> ParsedCommandLine {
        let mut told = ParsedCommandLine {
            accel: ("kvm".into(), "Firecracker knows nothing else"),
            kernel: None,
            initrd: None,
            firmware: None,
            console: Console::Stdout("Firecracker has no other"),
            config: None,
            remarks: Vec::new(),
        };
        let Some((argument, file)) = argv::long(argv, "config-file") else {
            told.remarks.push((
                "configuration",
                "by the API".into(),
                "vmeter does not see the requests to the VMM's API, so it knows no kernel to \
                    read symbols from and cannot add kernel parameters; start the VMM with \
                    --no-api --config-file FILE"
                    .into(),
            ));
            return told;
        };
        match read_config(Path::new(file)) {
            Ok(content) => {
                let path = |name: &str| Some(PathBuf::from(content["boot-source"][name].as_str()?));
                (told.kernel, told.initrd) = (path("kernel_image_path"), path("initrd_path"));
                let given = Some(PathBuf::from(file));
                told.config =
                    Some(ConfigFile { argument, name: FILE, content, given, changed: false });
            }
            Err(error) => told.remarks.push((
                "configuration",
                Path::new(file).display().to_string(),
                format!("{error}: vmeter reads nothing from this file and adds nothing to it"),
            )),
        }
        told
    }

    fn kernel_line(&self, _: &[OsString], config: Option<&ConfigFile>) -> Option<String> {
        let source = config?.content.get("boot-source")?.as_object()?;
        let line = source.get("boot_args").and_then(Value::as_str);
        Some(line.unwrap_or(DEFAULT_BOOT_ARGS).to_owned())
    }

    fn ends_by_reset(&self, _: &[OsString], _: Option<&ConfigFile>) -> bool {
        true
    }

    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        config: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool {
        let line = self.kernel_line(argv, config.as_deref());
        let (Some(line), Some(config)) = (line, config) else { return false };
        let source = config.content.get_mut("boot-source").and_then(Value::as_object_mut);
        let Some(source) = source else { return false };
        let line = argv::with_kernel_words(OsStr::new(&line), words);
        source.insert("boot_args".into(), line.to_string_lossy().into());
        config.changed = true;
        true
    }
}

/// The state of devices and vCPUs, and the RAM, in a snapshot's folder.
const STATE: &str = "state";
const RAM: &str = "ram";
/// The way in which the launcher serves the pages of the RAM.
const UFFD: &str = "uffd";

/// The requests of Firecracker's `docs/snapshotting/snapshot-support.md`.
impl Snapshots for Firecracker {
    fn methods(&self) -> &'static [&'static str] {
        &["file", "uffd"]
    }

    fn maps(&self, method: &str) -> bool {
        method != UFFD
    }

    fn with_api(&self, argv: &[OsString]) -> Vec<OsString> {
        and(without(argv, &["api-sock"], &["no-api"]), "--api-sock", SOCKET)
    }

    fn save(&self, image: &Path) -> Vec<ApiRequest> {
        let files = json!({
            "snapshot_type": "Full",
            "snapshot_path": image.join(STATE),
            "mem_file_path": image.join(RAM),
        });
        vec![
            ApiRequest::new("PATCH", "/vm", &json!({ "state": "Paused" })),
            ApiRequest::new("PUT", "/snapshot/create", &files),
        ]
    }

    fn restored(&self, _: &str, argv: &[OsString], _: &Path) -> Vec<OsString> {
        self.with_api(&without(argv, &["config-file"], &[]))
    }

    fn load(&self, method: &str, image: &Path) -> Vec<ApiRequest> {
        let memory = match method == UFFD {
            true => json!({ "backend_type": "Uffd", "backend_path": HANDLER }),
            false => json!({ "backend_type": "File", "backend_path": image.join(RAM) }),
        };
        let files = json!({
            "snapshot_path": image.join(STATE),
            "mem_backend": memory,
            "resume_vm": true,
        });
        vec![ApiRequest::new("PUT", "/snapshot/load", &files)]
    }

    fn served(&self, method: &str, image: &Path) -> Option<PathBuf> {
        (method == UFFD).then(|| image.join(RAM))
    }
}

/// What Firecracker boots a kernel with where `boot_args` is left out
/// (`DEFAULT_KERNEL_CMDLINE` of its `src/vmm/src/vmm_config/boot_source.rs`). Words that are
/// added would take its place.
const DEFAULT_BOOT_ARGS: &str = "reboot=k panic=1 pci=off nomodule 8250.nr_uarts=0 i8042.noaux \
                                 i8042.nomux i8042.nopnp i8042.dumbkbd";

fn read_config(path: &Path) -> Result<Value, String> {
    let bytes = vmeter_base::files::read_limited(path, MAX_CONFIG).map_err(|e| e.to_string())?;
    serde_json::from_slice(&bytes).map_err(|e| format!("not JSON: {e}"))
}
