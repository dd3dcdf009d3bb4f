//! A small VMM with a switch for each habit of other VMMs, for vmeter's tests alone.
//!
//! Where RAM is, when it is freed, how its vCPUs' threads are called, which thread makes the
//! VM, who is told by a file and who by an API: VMMs differ in it, and vmeter must not. Its
//! guest is Linux, entered by the 64-bit boot protocol, or, for hosts whose KVM interprets
//! kernels, a loop in ring 3 beside the RAM of a Linux that ran elsewhere (`--plant`).

mod api;
mod linux;
mod memory;
mod ring3;
mod run;

use anyhow::{bail, Context, Result};
use clap::{Parser, ValueEnum};
use memory::Layout;
use std::path::PathBuf;

/// Further arguments, for a machine that a file or an API describes.
const HABITS: &str = "TEST_VMM";

/// What it does when the guest is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum End {
    /// Joins its vCPUs, unmaps RAM and closes the VM, then exits.
    Unmap,
    /// Exits from the vCPU's thread, without freeing anything first.
    Exit,
}

/// The machine and its habits.
#[derive(Debug, Clone, Parser)]
#[command(disable_version_flag = true)]
struct Machine {
    /// RAM, MiB.
    #[arg(long, default_value_t = 512)]
    memory: u64,
    /// Where the hole below 4 GiB begins, MiB.
    #[arg(long, default_value_t = 3072)]
    hole: u64,
    /// How RAM is mapped.
    #[arg(long, value_enum, default_value_t = Layout::LowHigh)]
    layout: Layout,
    /// How the VMM ends.
    #[arg(long, value_enum, default_value_t = End::Unmap)]
    end: End,
    /// vCPUs; Linux gets one.
    #[arg(long, default_value_t = 1)]
    vcpus: u8,
    /// What the vCPUs' threads are called, with `%` for the number.
    #[arg(long, default_value = "worker%")]
    thread_name: String,
    /// Makes the VM in a thread of its own.
    #[arg(long)]
    vm_thread: bool,
    /// Signals per second that the VMM sends to each vCPU's thread.
    #[arg(long, default_value_t = 0)]
    kicks: u32,
    /// A file with another guest's RAM, which the VMM copies into this guest's RAM.
    #[arg(long)]
    plant: Option<PathBuf>,
    /// Instructions that the guest in ring 3 executes.
    #[arg(long, default_value_t = 200_000_000)]
    work: u64,
    /// An uncompressed kernel.
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Its initial RAM disk.
    #[arg(long)]
    initrd: Option<PathBuf>,
    /// Its command line.
    #[arg(long, default_value = "")]
    cmdline: String,
    /// A file that describes the machine, in Firecracker's format.
    #[arg(long)]
    config_file: Option<PathBuf>,
    /// A socket on which a client describes the machine, through Firecracker's API.
    #[arg(long)]
    api_sock: Option<PathBuf>,
    /// No API.
    #[arg(long)]
    no_api: bool,
}

fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "--version") {
        println!("{}", version(&words[0]));
        return Ok(());
    }
    if let Ok(habits) = std::env::var(HABITS) {
        words.extend(habits.split_whitespace().map(str::to_owned));
    }
    let mut machine = Machine::parse_from(words);
    if let Some(file) = machine.config_file.clone() {
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        api::configure(&mut machine, &serde_json::from_slice(&text)?)?;
    } else if let Some(socket) = machine.api_sock.clone() {
        api::serve(&mut machine, &socket)?;
    }
    if machine.plant.is_none() && machine.kernel.is_none() {
        bail!("expected --plant FILE or --kernel FILE");
    }
    run::run(&machine)
}

/// What a VMM called `program` prints for `--version`.
fn version(program: &str) -> &'static str {
    match program.rsplit('/').next() {
        Some(name) if name.starts_with("firecracker") => "Firecracker v1.0.0-test",
        Some(name) if name.starts_with("cloud-hypervisor") => "cloud-hypervisor v1.0-test",
        _ => "test-vmm 1.0",
    }
}
