//! A machine of QEMU's from options, part by part: what the user leaves open is chosen, with a
//! reason that is shown.

use super::{Qemu, PROGRAM};
use crate::accel;
use crate::backend::{self, Backend, Machine, MachineError, Request};
use crate::capabilities::{self, Capabilities};
use crate::files::{digest, kernel_kind, KernelKind};
use std::path::{Path, PathBuf};
use vmeter_model::{Accel, MachineSpec};

const MACHINES: [&str; 4] = ["q35", "pc", "microvm", "pvh"];
const DEFAULT_MEMORY_MIB: u32 = 512;
/// The root bus of q35 has 32 slots; the host bridge and the south bridge take two.
const MAX_ROOT_PORTS: u32 = 30;
/// From here on each vCPU has a share of the instructions to the next timer.
const FAIR_ICOUNT: (u32, u32, u32) = (8, 1, 0);
/// Without ACPI a microvm finds its devices by what the chipset of a PC had.
const MICROVM: &str = "microvm,isa-serial=on,acpi=off,pit=on,pic=on,rtc=on";

/// The machine of a specification.
///
/// # Errors
/// As [`Backend::describe`].
pub(super) fn describe(qemu: &Qemu, request: &Request<'_>) -> Result<Machine, MachineError> {
    let spec = request.spec;
    let name = spec.vmm.as_deref().filter(|v| *v != "qemu").unwrap_or(PROGRAM);
    let program = backend::find(qemu, name.as_ref())?;
    let capabilities = capabilities::of(&program, request.cache)?.capabilities;
    let accel = accel::choose(spec.accel, &capabilities.accelerators, request.cache)?;
    let machine = Machine {
        backend: qemu.name(),
        argv: vec![name.into()],
        accel: Some(accel.accel),
        dialect: qemu.dialect(),
        may_inject: !spec.no_inject,
        kernel: request.kernel().map(Path::to_owned),
        own_init: request.own_init(),
        ..Machine::default()
    };
    let mut b = Builder { request, spec, capabilities, accel: accel.accel, machine };
    b.machine.choose("accel", accel.accel.word(), accel.why);
    b.program(&program);
    b.board()?;
    b.firmware()?;
    b.size()?;
    b.root_ports()?;
    b.root()?;
    b.kernel()?;
    b.machine.argv.extend(spec.vmm_arg.iter().map(Into::into));
    Ok(b.machine)
}

struct Builder<'a> {
    request: &'a Request<'a>,
    spec: &'a MachineSpec,
    capabilities: Capabilities,
    accel: Accel,
    machine: Machine,
}

impl Builder<'_> {
    fn add(&mut self, words: &[&str]) {
        self.machine.argv.extend(words.iter().map(Into::into));
    }

    fn choose(&mut self, what: &str, value: &str, why: &str) {
        self.machine.choose(what, value, why);
    }

    /// A reason that depends on whether the user asked for it.
    fn because(asked: bool, option: &str, default: &str) -> String {
        if asked {
            option.to_owned()
        } else {
            format!("{default}; {option} to change")
        }
    }

    fn file(&mut self, what: &'static str, path: &Path, option: &str) -> Result<(), MachineError> {
        let digest =
            digest(path).map_err(|error| MachineError::File { what, path: path.into(), error })?;
        self.choose(what, &path.display().to_string(), option);
        self.machine.provenance.insert(what.into(), format!("{} {digest}", path.display()));
        Ok(())
    }

    fn program(&mut self, program: &Path) {
        let line = self.capabilities.version_line.clone();
        let shown = format!("{line} ({})", program.display());
        self.machine.provenance.insert("vmm".into(), shown);
        let why = Self::because(self.spec.vmm.is_some(), "--vmm", "the one in PATH");
        self.choose("vmm", &line, &why);
        self.add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    }

    fn is_microvm(&self) -> bool {
        self.spec.machine.as_deref() == Some("microvm")
    }

    fn board(&mut self) -> Result<(), MachineError> {
        let asked = self.spec.machine.as_deref();
        let name = asked.unwrap_or("q35");
        let why = Self::because(asked.is_some(), "--machine", "PCIe, as most clouds have");
        let board = match name {
            "pvh" => "q35",
            "microvm" => MICROVM,
            "q35" | "pc" => name,
            other if versioned(other) && self.capabilities.has_machine(other) => other,
            other => return Err(MachineError::unknown("machine", other, &MACHINES)),
        };
        let bare = board.split(',').next().unwrap_or(board);
        if !self.capabilities.has_machine(bare) {
            return Err(MachineError::Combination(format!(
                "--machine {name}: {} has no machine {bare}",
                self.capabilities.version_line
            )));
        }
        let nvdimm = if self.root_name() == "nvdimm" { ",nvdimm=on" } else { "" };
        let board = format!("{board}{nvdimm}");
        self.add(&["-machine", &board]);
        self.choose("machine", name, &why);
        match self.accel {
            Accel::Kvm => self.add(&["-accel", "kvm", "-cpu", "host"]),
            Accel::Tcg => self.add(&["-accel", "tcg"]),
            Accel::Icount => self.add(&[
                "-accel",
                "tcg",
                "-icount",
                "shift=0,sleep=off",
                "-rtc",
                "base=2026-01-01,clock=vm",
                // What QEMU gives as random (RDRAND, a boot protocol's seed).
                "-seed",
                "1",
            ]),
        }
        Ok(())
    }

    fn firmware(&mut self) -> Result<(), MachineError> {
        let asked = self.spec.firmware.as_deref();
        let default = if self.is_microvm() { "qboot" } else { "seabios" };
        let name = asked.unwrap_or(default);
        let seabios = if self.is_microvm() { "bios-microvm.bin" } else { "bios-256k.bin" };
        let given = match name {
            "seabios" => seabios,
            "qboot" => "qboot.rom",
            path if path.contains('/') || Path::new(path).is_file() => path,
            other => {
                let valid = ["seabios", "qboot", "the path of a firmware file"];
                return Err(MachineError::unknown("firmware", other, &valid));
            }
        };
        let given = given.to_owned();
        if name != "seabios" || self.is_microvm() {
            self.add(&["-bios", &given]);
        }
        let why = Self::because(asked.is_some(), "--firmware", "QEMU's own default");
        let file = if Path::new(&given).is_file() {
            Some(PathBuf::from(&given))
        } else {
            self.capabilities.firmware_file(&given)
        };
        match file {
            Some(file) => self.file("firmware", &file, &why),
            None => Err(MachineError::Combination(format!(
                "--firmware {name}: {given} is in none of QEMU's folders ({}); \
                 on Debian: apt-get install seabios qemu-system-data",
                self.capabilities
                    .firmware_dirs
                    .iter()
                    .map(|d| d.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
        }
    }

    fn size(&mut self) -> Result<(), MachineError> {
        let smp = self.spec.smp.unwrap_or(1);
        let memory = self.spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
        if smp == 0 {
            return Err(MachineError::unknown("smp", "0", &["1 and more"]));
        }
        if smp > 1 && self.accel == Accel::Icount && self.capabilities.version < FAIR_ICOUNT {
            return Err(MachineError::Combination(format!(
                "--smp {smp} --accel icount: {} lets a waiting vCPU spin until its next timer, \
                 so Linux hangs when it starts the second vCPU; use --smp 1, or QEMU 8.1 \
                 or later",
                self.capabilities.version_line
            )));
        }
        if memory < 16 {
            let shown = memory.to_string();
            return Err(MachineError::unknown("memory", &shown, &["16 and more (MiB)"]));
        }
        self.add(&["-smp", &smp.to_string()]);
        let why = Self::because(self.spec.smp.is_some(), "--smp", "the least noise");
        self.choose("smp", &smp.to_string(), &why);
        let value = match self.dax_image()? {
            // Room for the image in the guest's address space, beside the memory.
            Some((_, bytes)) => {
                let room = u64::from(memory) + (bytes >> 20).next_multiple_of(1024) + 1024;
                format!("{memory}M,slots=2,maxmem={room}M")
            }
            None => format!("{memory}M"),
        };
        self.add(&["-m", &value]);
        let why = Self::because(self.spec.memory_mib.is_some(), "--memory", "enough to boot");
        self.choose("memory", &format!("{memory} MiB"), &why);
        Ok(())
    }

    fn root_ports(&mut self) -> Result<(), MachineError> {
        let ports = self.spec.pcie_root_ports.unwrap_or(0);
        if ports == 0 {
            return Ok(());
        }
        let machine = self.spec.machine.as_deref().unwrap_or("q35");
        if !(machine == "q35" || machine == "pvh" || machine.starts_with("pc-q35-")) {
            return Err(MachineError::Combination(format!(
                "--pcie-root-ports {ports}: a {machine} machine has no PCIe root bus; \
                 use --machine q35 or pvh"
            )));
        }
        if ports > MAX_ROOT_PORTS {
            let valid = [&*format!("0 to {MAX_ROOT_PORTS} (the slots of q35's root bus)")];
            return Err(MachineError::unknown("pcie-root-ports", &ports.to_string(), &valid));
        }
        for n in 1..=ports {
            let device = format!("pcie-root-port,id=rp{n},chassis={n},slot={n}");
            self.add(&["-device", &device]);
        }
        self.choose("pcie-root-ports", &ports.to_string(), "--pcie-root-ports; all are empty");
        Ok(())
    }

    fn root_name(&self) -> &str {
        self.spec.root.as_deref().unwrap_or("initramfs")
    }

    /// True for a root that the guest has as memory.
    fn root_is_memory(&self) -> bool {
        ["dax", "nvdimm"].contains(&self.root_name())
    }

    /// The image and its size, for a root that the guest has as memory.
    fn dax_image(&self) -> Result<Option<(PathBuf, u64)>, MachineError> {
        match self.root_is_memory() {
            true => self.root_image().map(Some),
            false => Ok(None),
        }
    }

    fn root_image(&self) -> Result<(PathBuf, u64), MachineError> {
        let path = self.request.root_image.ok_or_else(|| {
            MachineError::Combination(
                "--root dax, nvdimm and virtio-blk need an image of a root file system, and vmeter has \
                 made none for this boot; use --root initramfs"
                    .into(),
            )
        })?;
        let size = path.metadata().map(|m| m.len()).map_err(|error| MachineError::File {
            what: "root image",
            path: path.into(),
            error,
        })?;
        Ok((path.into(), size))
    }

    fn root(&mut self) -> Result<(), MachineError> {
        let asked = self.spec.root.as_deref();
        let name = asked.unwrap_or("initramfs");
        match name {
            "initramfs" => {}
            "dax" | "nvdimm" if self.is_microvm() => {
                return Err(MachineError::Combination(format!(
                    "--root {name}: vmeter makes a microvm without PCI (for virtio-pmem) and ACPI (for an \
                     NVDIMM); use --machine q35, pc or pvh"
                )));
            }
            "dax" | "nvdimm" => {
                let (path, size) = self.root_image()?;
                let path = escaped(&path)?;
                let memory =
                    format!("memory-backend-file,id=rootmem,share=on,mem-path={path},size={size}");
                let device = if name == "dax" { "virtio-pmem-pci" } else { "nvdimm" };
                let device = format!("{device},memdev=rootmem");
                self.add(&["-object", &memory, "-device", &device]);
            }
            "virtio-blk" => {
                let (path, _) = self.root_image()?;
                let path = escaped(&path)?;
                let drive = format!("if=none,id=rootdrive,format=raw,readonly=on,file={path}");
                let bus = if self.is_microvm() { "device" } else { "pci" };
                let device = format!("virtio-blk-{bus},drive=rootdrive");
                self.add(&["-drive", &drive, "-device", &device]);
            }
            other => {
                let valid = ["initramfs", "dax", "nvdimm", "virtio-blk"];
                return Err(MachineError::unknown("root", other, &valid));
            }
        }
        let why = match name {
            "virtio-blk" if self.is_microvm() => {
                "--root; without ACPI the guest finds the root device only if its kernel has \
                    CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES, and Debian's kernels lack this option"
                    .to_owned()
            }
            "virtio-blk" | "dax" | "nvdimm" if self.accel == Accel::Icount => {
                "--root; each I/O request of the guest waits until the host completes it, so runs \
                    differ slightly even in virtual time"
                    .to_owned()
            }
            _ => Self::because(asked.is_some(), "--root", "nothing to mount"),
        };
        self.choose("root", name, &why);
        Ok(())
    }

    fn kernel(&mut self) -> Result<(), MachineError> {
        self.add(&["-serial", "stdio"]);
        self.choose("console", "ttyS0 on standard output", "QEMU's -serial stdio");
        let init = self.spec.init.as_deref().unwrap_or("minimal");
        if !["minimal", "udev"].contains(&init) {
            return Err(MachineError::unknown("init", init, &["minimal", "udev"]));
        }
        let Some(kernel) = self.request.kernel() else {
            self.choose(
                "kernel",
                "none",
                "without a kernel, only the firmware runs; boot a \
                kernel with --kernel FILE",
            );
            return Ok(());
        };
        let io = |error| MachineError::File { what: "kernel", path: kernel.into(), error };
        let kind = kernel_kind(kernel).map_err(io)?;
        if self.spec.machine.as_deref() == Some("pvh") && kind != KernelKind::Vmlinux {
            return Err(MachineError::Combination(format!(
                "--machine pvh: {} is not an ELF file, and PVH needs an uncompressed vmlinux: \
                    extract it from the bzImage, or use --machine q35",
                kernel.display()
            )));
        }
        let why = Self::because(self.spec.kernel.is_some(), "--kernel", "vmeter's own");
        self.file("kernel", kernel, &why)?;
        self.machine.argv.extend(["-kernel".into(), kernel.into()]);
        if let Some(initrd) = self.request.initrd() {
            let why = if self.request.own_init() {
                format!("vmeter's own (--init {init}); --initrd to change")
            } else {
                "--initrd".to_owned()
            };
            self.file("initrd", initrd, &why)?;
            self.machine.argv.extend(["-initrd".into(), initrd.into()]);
        }
        self.command_line(init);
        Ok(())
    }

    /// The kernel's command line: what it takes to be measured, then the user's words.
    fn command_line(&mut self, init: &str) {
        let words = self.parameters(init);
        let line: Vec<&str> = words.iter().map(|(word, _)| &**word).collect();
        let line = line.join(" ");
        self.add(&["-append", &line]);
        let reasons: Vec<String> = words
            .iter()
            .filter(|(_, why)| !why.is_empty())
            .map(|(w, y)| format!("{w}: {y}"))
            .collect();
        self.choose("append", &line, &format!("{}; --append adds words", reasons.join(", ")));
    }

    fn parameters(&self, init: &str) -> Vec<(String, &'static str)> {
        let mut words: Vec<(String, &'static str)> = vec![
            ("console=ttyS0".into(), ""),
            ("quiet".into(), "a character on a serial console costs an exit"),
            ("panic=-1".into(), "a panic ends the run"),
        ];
        if self.accel != Accel::Kvm {
            words.push((
                "no_timer_check".into(),
                "on a loaded host, the kernel's timer test \
                fails",
            ));
        }
        if self.is_microvm() {
            words.push(("reboot=t".into(), "a microvm without ACPI ends by a reset"));
        }
        let root = self.spec.root.as_deref().filter(|r| *r != "initramfs");
        // `maxmem` lies above 4 GiB: Linux reserves 64 MiB for devices that can't reach it.
        if self.root_is_memory() {
            words.push((
                "swiotlb=noforce".into(),
                "without this, a guest with room for persistent memory reserves 64 MiB for \
                    bounce buffers",
            ));
        }
        if self.request.own_init() {
            if self.is_microvm() {
                words.push(("vmeter.exit=reset".into(), ""));
            }
            if init == "udev" {
                words.push(("vmeter.init=udev".into(), ""));
            }
            let kind = root.map(|root| if root == "nvdimm" { "dax" } else { root });
            words.extend(kind.map(|kind| (format!("vmeter.root={kind}"), "")));
        } else {
            words.extend(match root {
                Some("dax" | "nvdimm") => {
                    Some(("root=/dev/pmem0 ro rootfstype=ext4 rootflags=dax=always".into(), ""))
                }
                Some(_) => Some(("root=/dev/vda ro".into(), "")),
                None => None,
            });
        }
        words.extend(self.spec.append.iter().map(|word| (word.clone(), "")));
        words
    }
}

/// Machine types with a version keep their ABI: useful to compare QEMU versions.
fn versioned(name: &str) -> bool {
    name.starts_with("pc-q35-") || name.starts_with("pc-i440fx-")
}

/// A path as a value in one of QEMU's comma-separated lists: commas are doubled.
fn escaped(path: &Path) -> Result<String, MachineError> {
    let text = path.to_str().ok_or_else(|| {
        MachineError::Combination(format!("{}: QEMU needs a path in UTF-8", path.display()))
    })?;
    Ok(text.replace(',', ",,"))
}
