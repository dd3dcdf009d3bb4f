//! How a machine is described on the command line.

use clap::Args;
use std::path::PathBuf;
use vmeter_model::{AskedAccel, MachineSpec};

/// The options that describe a machine, the same in every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machine options")]
pub struct Machine {
    // The names are the registry's: the help cannot forget one.
    #[arg(long, value_name = "VMM", help = vmm_help())]
    pub vmm: Option<String>,
    /// How the guest's CPU runs: auto (kvm where it works, else tcg), kvm, tcg, or icount
    /// (deterministic virtual time) (default: auto).
    #[arg(long)]
    pub accel: Option<AskedAccel>,
    /// Machine type: q35, pc, microvm, or pvh (a q35 that enters an uncompressed kernel without
    /// firmware) (default: q35).
    #[arg(long)]
    pub machine: Option<String>,
    /// Firmware: seabios, qboot, or a firmware file (default: seabios; qboot for a microvm).
    #[arg(long)]
    pub firmware: Option<String>,
    /// Kernel image (default: the newest that `vmeter kernel fetch` has cached).
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub kernel: Option<PathBuf>,
    /// Symbols of a kernel without CONFIG_KALLSYMS: the System.map or the vmlinux of the same
    /// build. vmeter ignores symbols of another build (default: none).
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub symbols: Option<PathBuf>,
    /// Initial RAM disk (default: vmeter's own, with the init that --init names).
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub initrd: Option<PathBuf>,
    /// Arguments to add to the kernel command line; may be repeated (default: none).
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// vCPUs.
    #[arg(long, value_name = "N")]
    pub smp: Option<u32>,
    /// Memory, MiB.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Number of empty PCIe root ports (default: 0).
    #[arg(long, value_name = "N")]
    pub pcie_root_ports: Option<u32>,
    /// Init program of vmeter's own initrd: minimal (vmeter's) or udev (the distribution's)
    /// (default: minimal).
    #[arg(long)]
    pub init: Option<String>,
    /// Device of the root file system: initramfs, dax (DAX on virtio-pmem), nvdimm (DAX on an
    /// NVDIMM) or virtio-blk (default: initramfs).
    #[arg(long)]
    pub root: Option<String>,
    /// Event that ends the measurement: poweroff, userspace, systemd-ready (systemd prints that it
    /// reached its target), guest-booted (the guest signals its VMM by Firecracker's boot timer or
    /// cloud-hypervisor's debug port), or line:REGEX (a console line matches) (default: poweroff).
    #[arg(long)]
    pub until: Option<String>,
    /// Mark the time of the first console line that REGEX matches. The timeline, exports and
    /// `vmeter diff` show it as NAME; may be repeated (default: none).
    #[arg(long, value_name = "NAME=REGEX")]
    pub mark: Vec<String>,
    /// Give up on a boot after this many seconds [default: 120, or 600 with --accel icount].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Run the command line after `--` exactly as given, without vmeter's additions.
    #[arg(long)]
    pub no_inject: bool,
    /// After each run, kill every process that the command line started, daemons and orphans too.
    ///
    /// Without --end-vm, vmeter does not kill a daemon (-daemonize), or a process that still runs
    /// after the command exited with status 0. vmeter lists such processes.
    #[arg(long)]
    pub end_vm: bool,
    /// Argument to append to QEMU's command line, e.g. --vmm-arg=-device --vmm-arg=virtio-rng-pci;
    /// may be repeated (default: none).
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub vmm_arg: Vec<String>,
}

impl Machine {
    /// The machine that these options specify. `command` is the command line after `--`.
    pub fn spec(self, command: Vec<String>) -> MachineSpec {
        MachineSpec {
            vmm: self.vmm,
            accel: self.accel,
            machine: self.machine,
            firmware: self.firmware,
            kernel: self.kernel,
            symbols: self.symbols,
            initrd: self.initrd,
            append: self.append,
            smp: self.smp,
            memory_mib: self.memory,
            pcie_root_ports: self.pcie_root_ports,
            init: self.init,
            root: self.root,
            until: self.until,
            mark: self.mark,
            timeout_s: self.timeout,
            command,
            no_inject: self.no_inject,
            end_vm: self.end_vm,
            vmm_arg: self.vmm_arg,
        }
    }
}

fn vmm_help() -> String {
    let names: Vec<&str> = vmeter_machine::backend::options().collect();
    format!(
        "Virtual machine monitor: {}; or the path of one of these, or of a program that takes \
        QEMU's options (default: qemu)",
        names.join(", ")
    )
}

/// Accepts only UTF-8 paths, because a session saves its machine as JSON.
fn utf8() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::TypedValueParser;
    clap::builder::StringValueParser::new().map(PathBuf::from)
}
