//! Boots for real, through the recorder.

use crate::boots::{BootRequest, Booter};
use crate::prepare::Prepared;
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use vmeter_machine::backends::mock;
use vmeter_machine::backends::mock::play::Scene;
use vmeter_machine::backends::mock::script::Script;
use vmeter_machine::launch::{LaunchError, Reason, Stopper};
use vmeter_model::RunRecord;
use vmeter_record::recorder::Context;
use vmeter_record::run::Request;
use vmeter_session::failure::{host, usage};
use vmeter_session::{cache_dir, RunOptions};

/// The recorder, with the machines of a session.
#[derive(Debug)]
pub struct Recorder {
    /// Machines, in the session's order.
    pub machines: Vec<Prepared>,
    /// vmeter's cache folder.
    pub cache: PathBuf,
    /// CPUs the VMM may use; empty for all.
    pub pin: Vec<usize>,
}

impl Recorder {
    /// The recorder for machines that were prepared, on the CPUs of a list such as `0,2-3`.
    ///
    /// # Errors
    /// Class usage: a list that is not one.
    pub fn of(machines: Vec<Prepared>, pin: Option<&str>) -> Result<Self> {
        let pin = pin.map(str::to_owned);
        let pin = RunOptions { pin, ..RunOptions::default() }.pinned()?;
        Ok(Recorder { machines, cache: cache_dir()?, pin })
    }
}

impl Booter for Recorder {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let prepared = self.machines.get(request.planned.machine).ok_or_else(|| {
            usage(format!("session.json: run {} names a machine that is not there", request.index))
        })?;
        let machine = &prepared.machine;
        if let Some(script) = &machine.script {
            return play(script, prepared, request);
        }
        let stopper = Stopper::new().context("no descriptors left")?;
        let _during = request.interrupt.during({
            let stopper = stopper.clone();
            move || stopper.stop(Reason::Interrupted)
        });
        let context = Context {
            spec: &prepared.session.spec,
            watch: request.planned.watch,
            dir: request.dir,
            cache: &self.cache,
            kernel: machine.kernel.as_deref(),
            accel: machine.accel,
            vmm: machine.abilities(),
            own_init: machine.own_init,
            memory: prepared.memory,
            ready: None,
            watches: Vec::new(),
        };
        let probe_s = vmeter_session::host::probe_s();
        let (steal, pressure) =
            (vmeter_session::host::steal_s(), vmeter_session::host::cpu_pressure_s());
        let record = vmeter_record::run::run(
            Request {
                context,
                plan: machine.plan(),
                index: request.index,
                label: request.machine.label.clone(),
                warmup: request.planned.warmup,
                until: prepared.until.clone(),
                timeout: Some(prepared.timeout),
                pin: self.pin.clone(),
            },
            &stopper,
        );
        let mut record = record.map_err(classify)?;
        record.steal_s = (vmeter_session::host::steal_s() - steal).max(0.0);
        let waited = vmeter_session::host::cpu_pressure_s().zip(pressure);
        record.cpu_pressure_s = waited.map(|(after, before)| (after - before).max(0.0));
        record.probe_s = Some(probe_s);
        Ok(record)
    }
}

fn play(script: &Script, prepared: &Prepared, request: &BootRequest<'_>) -> Result<RunRecord> {
    let scene = Scene {
        spec: &prepared.session.spec,
        label: &request.machine.label,
        index: request.index,
        warmup: request.planned.warmup,
        watch: request.planned.watch,
        seed: request.seed,
    };
    mock::record(script, &scene, request.dir).context("cannot play the mock's script")
}

fn classify(error: LaunchError) -> anyhow::Error {
    match error {
        LaunchError::Prepare { .. }
        | LaunchError::Follow { .. }
        | LaunchError::Unrecorded { .. } => host(error),
        LaunchError::Start { error: ref cause, .. } if is_shortage(cause) => host(error),
        LaunchError::Start { .. }
        | LaunchError::Empty
        | LaunchError::NotFound { .. }
        | LaunchError::NotInPath { .. }
        | LaunchError::NotExecutable { .. }
        | LaunchError::Nul { .. }
        | LaunchError::Cpu { .. } => usage(error),
    }
}

/// True for what this host has no more of: processes, memory, descriptors.
fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
