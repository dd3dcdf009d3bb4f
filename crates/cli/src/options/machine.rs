//! How a machine is described on the command line.

use clap::Args;
use std::path::PathBuf;
use vmeter_model::{AskedAccel, MachineSpec};

/// How a machine is described, the same everywhere.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machine options")]
pub struct Machine {
    // The names are the registry's: the help cannot forget one.
    #[arg(long, value_name = "VMM", help = vmm_help())]
    pub vmm: Option<String>,
    /// auto (probed), kvm, tcg, or icount (deterministic virtual time).
    #[arg(long)]
    pub accel: Option<AskedAccel>,
    /// q35, pc, microvm, or pvh (q35 entering an uncompressed kernel directly).
    #[arg(long)]
    pub machine: Option<String>,
    /// seabios, qboot, or a firmware file.
    #[arg(long)]
    pub firmware: Option<String>,
    /// Kernel image (default: the newest that `vmeter kernel fetch` has cached).
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub kernel: Option<PathBuf>,
    /// Names for a kernel without CONFIG_KALLSYMS: the System.map or the vmlinux of the build that
    /// boots. vmeter ignores the file of another build.
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub symbols: Option<PathBuf>,
    /// Initial RAM disk (default: vmeter's own, which --init selects).
    #[arg(long, value_name = "FILE", value_parser = utf8())]
    pub initrd: Option<PathBuf>,
    /// Added to the kernel command line; may be repeated.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// vCPUs.
    #[arg(long, value_name = "N")]
    pub smp: Option<u32>,
    /// Memory, MiB.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Empty PCIe root ports.
    #[arg(long, value_name = "N")]
    pub pcie_root_ports: Option<u32>,
    /// Init of vmeter's own initrd: minimal (vmeter's) or udev (the distribution's).
    #[arg(long)]
    pub init: Option<String>,
    /// Root: initramfs, dax (virtio-pmem), nvdimm (DAX as well) or virtio-blk.
    #[arg(long)]
    pub root: Option<String>,
    /// Where the measurement ends (default: poweroff): poweroff, userspace, systemd-ready (systemd
    /// reports on the console that it reached its target), guest-booted (the guest tells its VMM:
    /// Firecracker's boot timer, cloud-hypervisor's debug port), or line:REGEX.
    #[arg(long)]
    pub until: Option<String>,
    /// Mark the moment of the first console line that REGEX matches: in the timeline, exports
    /// and `vmeter diff`; may be repeated.
    #[arg(long, value_name = "NAME=REGEX")]
    pub mark: Vec<String>,
    /// Give up on a boot after this many seconds [default: 120; with --accel icount 600].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Run the command line after `--` exactly as given. Add nothing.
    #[arg(long)]
    pub no_inject: bool,
    /// After each run, end every process that the command line started, daemons and orphans too.
    ///
    /// Without it, a run that ends early (--timeout, Ctrl-C, kill -9 of vmeter) ends the command, all
    /// processes of its session, and, while the launcher runs, a VM in its own session (setsid).
    /// vmeter leaves these running and names them: a daemon (-daemonize); processes that a launcher
    /// starts before it exits with status 0; at the point of --until, processes in a session of
    /// their own without a terminal.
    #[arg(long)]
    pub end_vm: bool,
    /// An argument for QEMU, after those from the other options, e.g.
    /// --vmm-arg=-device --vmm-arg=virtio-rng-pci; may be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub vmm_arg: Vec<String>,
}

impl Machine {
    /// The specification this asks for, `command` being what came after `--`.
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
    format!("{}, or the path of one (any program that takes QEMU's options)", names.join(", "))
}

/// A path that a session can keep: saved machines are JSON.
fn utf8() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::TypedValueParser;
    clap::builder::StringValueParser::new().map(PathBuf::from)
}
