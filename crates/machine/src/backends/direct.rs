//! What VMMs without a board have in common: KVM alone, a kernel that is entered directly,
//! no firmware, no machine types.

use super::qemu::VERSION_WITHIN;
use crate::accel;
use crate::backend::{self, Machine, MachineError, Request};
use crate::files::{digest, kernel_kind, KernelKind};
use crate::output::version_line;
use crate::vmm::Dialect;
use std::path::Path;
use vmeter_model::machine::GUEST_BOOTED;
use vmeter_model::{Accel, AskedAccel, MachineSpec};

const DEFAULT_MEMORY_MIB: u32 = 512;
const LEAST_MEMORY_MIB: u32 = 16;

/// A machine in the making.
pub(super) struct Describing<'a> {
    pub request: &'a Request<'a>,
    pub spec: &'a MachineSpec,
    pub machine: Machine,
    /// The VMM in sentences.
    vmm: &'static str,
}

impl<'a> Describing<'a> {
    /// A machine of `dialect`'s VMM: `program`, or the file that the user names, or what is
    /// called like the back end.
    pub fn new(
        request: &'a Request<'a>,
        backend: &'static str,
        program: Option<&str>,
        dialect: &'static dyn Dialect,
    ) -> Result<Self, MachineError> {
        let spec = request.spec;
        let vmm = dialect.vmm();
        refuse(spec, dialect)?;
        let name = program.or(spec.vmm.as_deref()).unwrap_or(backend);
        let program = backend::find(dialect, name.as_ref())?;
        let version = version_line(program.as_os_str(), dialect.version_option(), VERSION_WITHIN);
        let version = version.filter(|line| dialect.says_so(line)).ok_or_else(|| {
            MachineError::Combination(format!(
                "--vmm {name}: the output of {} {} does not mention {vmm}; if the program is \
                 another VMM, give its whole command line after `--`",
                program.display(),
                dialect.version_option()
            ))
        })?;
        let mut machine = Machine {
            backend,
            argv: vec![name.into()],
            dialect: Some(dialect),
            may_inject: !spec.no_inject,
            own_init: request.own_init(),
            ..Machine::default()
        };
        machine.provenance.insert("vmm".into(), format!("{version} ({})", program.display()));
        machine.choose("vmm", version, "--vmm");
        Ok(Describing { request, spec, machine, vmm })
    }

    /// KVM, which is all there is: on a host where it interprets kernels, slowly.
    pub fn accel(&mut self) -> Result<(), MachineError> {
        let probe = accel::probe(self.request.cache).map_err(|why| {
            MachineError::Combination(format!(
                "{} can run guests only with KVM, and vmeter cannot use KVM here: {why}. \
                    --vmm qemu can boot guests without KVM",
                self.vmm
            ))
        })?;
        let mut why = format!("{} knows nothing else", self.vmm);
        if !probe.boots_kernels() {
            why = format!("{why}, though {}", probe.summary());
        }
        self.machine.accel = Some(Accel::Kvm);
        self.machine.choose("accel", Accel::Kvm.word(), why);
        Ok(())
    }

    /// vCPUs and memory, MiB.
    pub fn size(&mut self, most_vcpus: u32) -> Result<(u32, u32), MachineError> {
        let smp = self.spec.smp.unwrap_or(1);
        if !(1..=most_vcpus).contains(&smp) {
            let valid = format!("1 to {most_vcpus} with {}", self.vmm);
            return Err(MachineError::unknown("smp", &smp.to_string(), &[&valid]));
        }
        let memory = self.spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
        if memory < LEAST_MEMORY_MIB {
            let valid = format!("{LEAST_MEMORY_MIB} and more (MiB)");
            return Err(MachineError::unknown("memory", &memory.to_string(), &[&valid]));
        }
        let asked = |asked: bool, option: &str, default: &str| {
            if asked {
                option.to_owned()
            } else {
                format!("{default}; {option} to change")
            }
        };
        let why = asked(self.spec.smp.is_some(), "--smp", "the least noise");
        self.machine.choose("smp", smp.to_string(), why);
        let why = asked(self.spec.memory_mib.is_some(), "--memory", "enough to boot");
        self.machine.choose("memory", format!("{memory} MiB"), why);
        Ok((smp, memory))
    }

    /// The kernel, of the kind that this VMM enters, and the initial RAM disk.
    pub fn kernel(
        &mut self,
        wanted: KernelKind,
    ) -> Result<(&'a Path, Option<&'a Path>), MachineError> {
        let kernel = self.request.kernel().ok_or_else(|| {
            MachineError::Combination(format!("{} enters a kernel: --kernel FILE", self.vmm))
        })?;
        let io = |error| MachineError::File { what: "kernel", path: kernel.into(), error };
        if kernel_kind(kernel).map_err(io)? != wanted {
            let enters = match wanted {
                KernelKind::BzImage => "a bzImage (vmlinuz), and this file is not one",
                _ => "an uncompressed vmlinux, but this is not an ELF file",
            };
            let (shown, vmm) = (kernel.display(), self.vmm);
            return Err(MachineError::Combination(format!("{shown}: {vmm} enters {enters}")));
        }
        let why = match (self.spec.kernel.is_some(), wanted) {
            (true, _) => "--kernel",
            (false, KernelKind::Vmlinux) => "vmeter's own, uncompressed",
            (false, _) => "vmeter's own; --kernel to change",
        };
        self.file("kernel", kernel, why)?;
        self.machine.kernel = Some(kernel.to_owned());
        let initrd = self.request.initrd();
        if let Some(initrd) = initrd {
            let own = self.request.own_init();
            self.file(
                "initrd",
                initrd,
                if own { "vmeter's own; --initrd to change" } else { "--initrd" },
            )?;
        }
        Ok((kernel, initrd))
    }

    fn file(&mut self, what: &'static str, path: &Path, why: &str) -> Result<(), MachineError> {
        let digest =
            digest(path).map_err(|error| MachineError::File { what, path: path.into(), error })?;
        self.machine.choose(what, path.display().to_string(), why);
        self.machine.provenance.insert(what.into(), format!("{} {digest}", path.display()));
        Ok(())
    }

    /// The kernel's command line: what it takes to be measured, the board's words with
    /// their reasons, then the user's.
    pub fn command_line(&mut self, board: &[(&str, &str)]) -> String {
        let mut words = vec![
            ("console=ttyS0", ""),
            ("quiet", "a character on a serial console costs an exit"),
            ("panic=-1", "a panic ends the run"),
        ];
        words.extend(board);
        if self.request.own_init() && self.spec.init.as_deref() == Some("udev") {
            words.push(("vmeter.init=udev", ""));
        }
        words.extend(self.spec.append.iter().map(|word| (word.as_str(), "")));
        let line: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let line = line.join(" ");
        let reasons: Vec<String> = words
            .iter()
            .filter(|(_, why)| !why.is_empty())
            .map(|(word, why)| format!("{word}: {why}"))
            .collect();
        let why = format!("{}; --append adds words", reasons.join(", "));
        self.machine.choose("append", &*line, why);
        line
    }
}

/// Options that mean nothing to a VMM without a board, refused in words.
fn refuse(spec: &MachineSpec, dialect: &dyn Dialect) -> Result<(), MachineError> {
    let vmm = dialect.vmm();
    let root = spec.root.as_deref().filter(|root| *root != "initramfs");
    let accel = match spec.accel {
        None | Some(AskedAccel::Auto | AskedAccel::Only(Accel::Kvm)) => None,
        Some(AskedAccel::Only(other @ (Accel::Tcg | Accel::Icount))) => Some(other.word()),
    };
    let untold = |until: &String| until == GUEST_BOOTED && !dialect.is_told_of_boot();
    let told = spec.until.clone().filter(untold);
    let given = [
        (
            "until",
            told,
            "gets no boot signal from its guest; use userspace, poweroff or line:REGEX",
        ),
        ("accel", accel.map(str::to_owned), "runs guests only with KVM; leave --accel out"),
        ("machine", spec.machine.clone(), "has one kind of machine; leave this option out"),
        ("firmware", spec.firmware.clone(), "enters the kernel directly; leave this option out"),
        (
            "pcie-root-ports",
            spec.pcie_root_ports.filter(|ports| *ports > 0).map(|ports| ports.to_string()),
            "has no PCIe root ports; leave this option out",
        ),
        ("vmm-arg", spec.vmm_arg.first().cloned(), "is not QEMU; leave this option out"),
        ("root", root.map(str::to_owned), "gets no disk from vmeter; use --root initramfs"),
    ];
    for (option, value, why) in given {
        if let Some(value) = value {
            return Err(MachineError::Combination(format!(
                "--{option} {value}: {vmm} {why}, or use --vmm qemu"
            )));
        }
    }
    match spec.init.as_deref() {
        None | Some("minimal" | "udev") => Ok(()),
        Some(other) => Err(MachineError::unknown("init", other, &["minimal", "udev"])),
    }
}
