//! Small VMMs whose device model has one known fault.
//!
//! An explanation of a trace is only worth something if the cause is known. Here it
//! is planted: a guest of a few instructions drives the ports of a disk and of its
//! neighbours in turn, and the VMM serves them; the disk's command port is made slow
//! in one of the ways that device models are ([`Model`]), or in none. Rounds and
//! jitter are fixed by numbers given, so the same run can be had again. The guest is
//! in ring 3 ([`vmeter_kvm_probe`]), so it runs on any KVM.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod faults;
mod guest;
mod spin;
mod worker;

pub use guest::{Access, ACCESSES, COMMAND_PORT};

use faults::Fault;
use spin::Spin;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{Ring, Stop, VcpuExit, Vm, VmError};
use worker::Worker;

/// How the device slows down accesses to the command port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Model {
    /// Nothing.
    Healthy,
    /// System calls; for each call, every CPU has to run a work item.
    EveryCpu,
    /// A sleep of 1 ms.
    Sleeping,
    /// Computing, without a system call.
    Burning,
    /// A buffer written with a `write` a byte.
    Bytewise,
    /// A list: each command adds an item, then reads all items, with one `pread` for each item.
    Growing,
}

impl Model {
    /// All of them.
    pub const ALL: [Model; 6] = [
        Model::Healthy,
        Model::EveryCpu,
        Model::Sleeping,
        Model::Burning,
        Model::Bytewise,
        Model::Growing,
    ];

    /// Name, as [`Model::from_name`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            Model::Healthy => "healthy",
            Model::EveryCpu => "every-cpu",
            Model::Sleeping => "sleeping",
            Model::Burning => "burning",
            Model::Bytewise => "bytewise",
            Model::Growing => "growing",
        }
    }

    /// The model of that name.
    pub fn from_name(name: &str) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Number of rounds that shows the fault clearly, in two seconds at most, even while traced.
    pub fn rounds(self) -> u64 {
        match self {
            Model::Healthy | Model::Burning => 1000,
            Model::EveryCpu | Model::Sleeping => 600,
            // 153,600 calls.
            Model::Bytewise => 300,
            // Quadratic: 180,300 calls.
            Model::Growing => 600,
        }
    }
}

/// One run of a model.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What is wrong.
    pub model: Model,
    /// How many times the guest makes all [`ACCESSES`]; 0 means [`Model::rounds`].
    pub rounds: u64,
    /// Seed of the random delay of every access.
    pub seed: u64,
    /// If true, a separate thread serves the command port. An eventfd wakes the thread.
    pub worker: bool,
}

impl Options {
    /// A run of `model` with the default options.
    pub fn new(model: Model) -> Self {
        Options { model, rounds: 0, seed: 1, worker: false }
    }
}

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Port accesses served.
    pub accesses: u64,
    /// Of these, to [`COMMAND_PORT`].
    pub commands: u64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// KVM refused.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The host refused something that the fault needs.
    #[error("{step}: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The guest did not reach its end in time.
    #[error("the guest made only {accesses} of {expected} port accesses in {after:?}")]
    Late {
        /// Accesses seen.
        accesses: u64,
        /// Accesses expected.
        expected: u64,
        /// Time allowed.
        after: Duration,
    },
}

impl Error {
    fn system(step: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::System { step, source }
    }
}

/// Limit for the time of a run. On an idle machine, no model takes a tenth of it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs a model to its end.
///
/// # Errors
/// A host without a usable KVM, or without something that the fault needs.
pub fn run(options: Options) -> Result<Served, Error> {
    // As in every VMM, the vCPU has a thread of its own, with QEMU's name for it.
    let vcpu = std::thread::Builder::new().name("CPU 0/KVM".into());
    let thread = vcpu.spawn(move || serve(options)).map_err(Error::system("the vCPU's thread"))?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Which thread carries out the commands of the disk.
enum Disk {
    Here(Fault),
    Elsewhere(Worker),
}

impl Disk {
    fn command(&mut self) -> std::io::Result<()> {
        match self {
            Disk::Here(fault) => fault.command(),
            Disk::Elsewhere(worker) => worker.command(),
        }
    }
}

fn serve(options: Options) -> Result<Served, Error> {
    let rounds = if options.rounds == 0 { options.model.rounds() } else { options.rounds };
    let fault = Fault::new(options.model).map_err(Error::system("preparing the fault"))?;
    let mut disk = if options.worker {
        Disk::Elsewhere(Worker::start(fault).map_err(Error::system("the worker"))?)
    } else {
        Disk::Here(fault)
    };
    let mut jitter = Spin::new(options.seed);
    let vm = Vm::builder().code(guest::program()).build()?;
    let mut vcpu = vm.vcpu(0)?;
    vcpu.enter(Ring::Three, kvm_regs { rcx: rounds, ..Default::default() })?;
    let mut served = Served { accesses: 0, commands: 0 };
    let stop = vcpu.run(Some(Instant::now() + TIME_LIMIT), |exit| {
        let (port, data) = match exit {
            VcpuExit::IoOut(guest::DONE_PORT, _) => return ControlFlow::Break(Ok(())),
            VcpuExit::IoOut(port, _) => (port, None),
            VcpuExit::IoIn(port, data) => (port, Some(data)),
            _ => return ControlFlow::Continue(()),
        };
        served.accesses += 1;
        jitter.up_to_us(2);
        if let Some(data) = data {
            data.fill(port as u8);
        }
        if port == COMMAND_PORT {
            served.commands += 1;
            if let Err(error) = disk.command() {
                return ControlFlow::Break(Err(error));
            }
        }
        ControlFlow::Continue(())
    })?;
    match stop {
        Stop::Done(done) => done.map(|()| served).map_err(Error::system("serving a command")),
        _ => Err(Error::Late {
            accesses: served.accesses,
            expected: rounds * ACCESSES.len() as u64,
            after: TIME_LIMIT,
        }),
    }
}
