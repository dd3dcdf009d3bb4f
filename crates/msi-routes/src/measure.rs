// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What each strategy costs: samples, taken in turn so that whatever else the host does
//! hits all strategies alike. What they mean is for the caller's statistics to say.

use crate::error::{RouteError, StateError};
use crate::message::MsiMessage;
use crate::msix::{Msix, MsixState};
use crate::router::Router;
use crate::source::Source;
use crate::strategy::{enable, prepare, EnableError, Enabled, Strategy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The devices of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Devices (virtual functions).
    pub devices: usize,
    /// MSI-X vectors of each.
    pub vectors: usize,
    /// vCPUs that the vectors are spread over; at most 255 have an 8-bit APIC id.
    pub vcpus: usize,
}

impl Shape {
    /// A device's vector's message: each vCPU's APIC vectors 32 to 255 in turn, vCPU after
    /// vCPU, so that up to 224 vectors a vCPU can be told apart.
    pub fn message(&self, device: usize, vector: usize) -> MsiMessage {
        let n = device * self.vectors + vector;
        let apic_id = n % self.vcpus.clamp(1, 255);
        let apic_vector = 32 + n / self.vcpus.clamp(1, 255) % 224;
        MsiMessage::x86(apic_id as u8, apic_vector as u8)
    }

    /// The state of a device whose guest uses all its vectors, as a migration's stream has it.
    pub fn state(&self, device: usize) -> MsixState {
        let entry = |vector| {
            let MsiMessage { address, data, .. } = self.message(device, vector);
            [address as u32, (address >> 32) as u32, data, 0]
        };
        MsixState {
            control: 1 << 15 | (self.vectors.saturating_sub(1) & 0x7ff) as u16,
            table: (0..self.vectors).map(entry).collect(),
            pba: vec![0; self.vectors.div_ceil(64)],
        }
    }

    /// The devices with their states loaded, nothing enabled yet. One eventfd a vector.
    ///
    /// # Errors
    /// No file descriptor left ([`RouteError::EventFd`]); more vectors than MSI-X has.
    pub fn devices(&self, router: &Router) -> Result<Vec<Msix>, MeasureError> {
        (0..self.devices)
            .map(|device| {
                let sources = (0..self.vectors).map(|_| Source::gate(router.kernel()));
                let sources = sources.collect::<Result<Vec<_>, RouteError>>();
                let mut msix = Msix::new(sources.map_err(EnableError::from)?, None)?;
                msix.restore(&self.state(device))?;
                Ok(msix)
            })
            .collect()
    }
}

/// A measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A VM could not be made.
    #[error("cannot make the VM that the measurement needs: {0}")]
    Vm(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Devices of that shape can't be.
    #[error(transparent)]
    Shape(#[from] StateError),
    /// Enabling failed.
    #[error(transparent)]
    Enable(#[from] EnableError),
}

/// One run of one strategy on a fresh VM.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The strategy.
    pub strategy: Strategy,
    /// Which round, from 0 on.
    pub round: usize,
    /// Time spent ahead of the enabling ([`prepare`]).
    pub prepared: Duration,
    /// The enabling itself.
    pub enabled: Enabled,
}

/// Runs every strategy once a round, in an order that rotates. Each run is on a VM of its
/// own from `vm`, which also keeps the VM (and, if they are to run, its vCPUs) alive until
/// the run is over. `done` sees each sample as soon as it is there.
///
/// # Errors
/// The first failure; samples seen by `done` stand.
pub fn compare<V>(
    shape: Shape,
    strategies: &[Strategy],
    rounds: usize,
    mut vm: impl FnMut() -> Result<(Router, V), Box<dyn std::error::Error + Send + Sync>>,
    mut done: impl FnMut(&Sample, &[Msix]),
) -> Result<Vec<Sample>, MeasureError> {
    let mut samples = Vec::new();
    for round in 0..rounds {
        for turn in 0..strategies.len() {
            let strategy = strategies[(round + turn) % strategies.len()];
            let (router, keep) = vm().map_err(MeasureError::Vm)?;
            let mut devices = shape.devices(&router)?;
            let prepared = prepare(&router, &mut devices, strategy)?;
            let enabled = enable(&router, &mut devices, strategy)?;
            let sample = Sample { strategy, round, prepared, enabled };
            done(&sample, &devices);
            samples.push(sample);
            drop((devices, router, keep));
        }
    }
    Ok(samples)
}

/// Threads that keep CPUs busy until dropped: what a commit waits for is a kworker, which
/// has to share a CPU with them.
#[derive(Debug)]
pub struct BusyCpus {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyCpus {
    /// Starts `count` of them, wherever the scheduler puts them.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(count: usize) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut busy = Self { stop, threads: Vec::new() };
        for n in 0..count {
            let stop = busy.stop.clone();
            let spin = move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            busy.threads.push(std::thread::Builder::new().name(format!("busy-{n}")).spawn(spin)?);
        }
        Ok(busy)
    }
}

impl Drop for BusyCpus {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
