//! One run: a guest writes, its tracker tells, its bitmaps are harvested.

use crate::bitmaps::Harvested;
use crate::check::{compared, in_memory, Check};
use crate::config::SavedConfig;
use crate::frames::Frames;
use crate::harness::Harness;
use crate::layout::Layout;
use crate::plan::{PlannedPass, Step};
use crate::result::DirtySkipped;
use crate::station::Setting;
use crate::together::{ConcurrentVms, OfOne};
use crate::workload::{Kind, Workload};
use crate::{DirtyError, StrategyKind};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vmeter_base::clock;
use vmeter_model::run::DataRun;
use vmeter_session::{RunRequest, Runner, Watch};
use vmeter_stats::rng::Rng;

/// What the guests of a first run write lies above what they wrote when they were made.
const GENERATIONS: u64 = 1 << 32;

/// What was measured in a run, as it was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Frequency of the time stamp counter, measured since the guests were made, Hz.
    pub tsc_hz: f64,
    /// Harvester and vCPU were kept on different CPUs.
    pub apart: bool,
    /// What the guest wrote to each page.
    pub generation: u64,
    /// Pages that the guest was told to write to.
    pub pages: u64,
    /// What switching the tracker on for all slots took, when this guest was made, ns; none
    /// for a guest without a tracker.
    pub start_nanoseconds: Option<f64>,
    /// Its writes.
    pub write: Write,
    /// What telling them took; none for a guest without a tracker.
    pub collect: Option<Collect>,
    /// Harvests, in the order in which they were made.
    pub harvests: Vec<Harvest>,
    /// What was wrong; none if nothing was compared.
    pub check: Option<Check>,
    /// Several guests at once, each of them; empty for a pass of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<OfOne>,
}

/// What the guest's writes took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// By the guest's own clock, from before the first until after the last, cycles.
    pub tsc_cycles: u64,
    /// Times that a ring was full, or a fault was resolved.
    pub interruptions: u32,
    /// What KVM counted meanwhile (KVM_GET_STATS_FD; those that changed).
    pub counts: BTreeMap<String, u64>,
}

/// What telling the dirty pages took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collect {
    /// Of all slots, ns.
    pub nanoseconds: f64,
    /// Of each slot, ns; none for a tracker that tells all at once.
    pub slot_nanoseconds: Option<Vec<f64>>,
}

/// A slot harvested one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Harvest {
    /// Slot, from 0 in the order of the layout.
    pub slot: usize,
    /// How.
    pub strategy: StrategyKind,
    /// Pages found dirty.
    pub dirty_pages: u64,
    /// The first harvest, caches as the guest left them, cycles.
    pub first_tsc_cycles: f64,
    /// Cycles of a call, each sample the mean of `calls` calls.
    pub samples_tsc_cycles: Vec<f64>,
    /// Calls in a sample.
    pub calls: u32,
}

impl From<Harvested> for Harvest {
    fn from(harvested: Harvested) -> Self {
        let dirty = harvested.words.iter().map(|(_, word)| u64::from(word.count_ones()));
        Self {
            slot: harvested.slot,
            strategy: harvested.strategy,
            dirty_pages: dirty.sum(),
            first_tsc_cycles: harvested.first_cycles,
            samples_tsc_cycles: harvested.samples,
            calls: harvested.calls,
        }
    }
}

/// Carries out the runs of a session, once its guests are made.
#[derive(Debug)]
pub struct Passes {
    begun: SavedConfig,
    layout: Layout,
    load: Workload,
    /// CPUs that the guests may have; empty for all.
    pin: Vec<usize>,
    guests: Option<Guests>,
}

/// The guests, and what their runs share.
#[derive(Debug)]
struct Guests {
    harness: Harness,
    frames: Option<Frames>,
    /// The pass before, a warm-up or not.
    last: Option<(bool, u32)>,
    crowd: Option<ConcurrentVms>,
}

impl Passes {
    /// The runs of a session, without guests.
    pub(crate) fn new(begun: SavedConfig, layout: Layout, load: Workload, pin: Vec<usize>) -> Self {
        Self { begun, layout, load, pin, guests: None }
    }

    /// The workload of one guest.
    pub(crate) fn load(&self) -> &Workload {
        &self.load
    }

    /// The slots of one guest.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Makes a guest for each tracker of the session, and says which trackers cannot be had.
    ///
    /// # Errors
    /// /dev/kvm is missing or runs no guest code natively; no timer for the rhythm of a screen.
    pub(crate) fn make_guests(
        &mut self,
        seed: u64,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<DirtySkipped>, DirtyError> {
        let (begun, asked) = (&self.begun, &self.begun.asked);
        let trackers = begun.trackers();
        let made = Harness::new(asked, &self.layout, &self.load, &trackers, &self.pin, watch);
        let (harness, lost) = made?;
        let frames = (asked.workload == Kind::Gui).then(|| Frames::new(asked.hz)).transpose()?;
        let crowd = match asked.vms.is_empty() {
            true => None,
            false => {
                let layout = begun.shared_layout()?;
                let bytes = asked.buffer_bytes(layout.scale);
                let load = Workload::new(asked.workload, &layout, bytes, asked.share(), seed);
                Some(ConcurrentVms::new(layout, load))
            }
        };
        self.guests = Some(Guests { harness, frames, last: None, crowd });
        Ok(lost)
    }

    /// A frame begins with the first guest's turn.
    fn wait_for_frame(&mut self, planned: &PlannedPass) -> Result<(), DirtyError> {
        let (Step::Pass { pass, .. }, Some(guests)) = (planned.step, &mut self.guests) else {
            return Ok(());
        };
        let this = Some((planned.warmup, pass));
        if let (true, Some(frames)) = (guests.last != this, &guests.frames) {
            frames.wait()?;
        }
        guests.last = this;
        Ok(())
    }

    /// Several guests at once under the run's tracker.
    fn together(
        &mut self,
        request: &RunRequest<'_, PlannedPass>,
        (round, vms, seed): (u32, usize, u64),
    ) -> Result<Data, DirtyError> {
        let unknown = || {
            DirtyError::Options(format!(
                "run {}: the session does not have the guests that this run needs",
                request.index
            ))
        };
        let kind = request.machine.label.parse().map_err(|_| unknown())?;
        let asked = &self.begun.asked;
        let Guests { harness, crowd, .. } = self.guests.as_mut().ok_or_else(unknown)?;
        let crowd = crowd.as_mut().filter(|_| asked.vms.contains(&vms)).ok_or_else(unknown)?;
        let all = harness.all_cpus();
        let layout = crowd.layout.clone();
        let setting = Setting {
            layout: &layout,
            files: &[],
            strategies: &asked.strategy,
            ring: harness.ring,
            ring_entries: asked.ring_entries,
            cpus: all,
            most_pages: 0,
            interrupt: request.interrupt,
        };
        let generation = GENERATIONS + 1 + u64::from(request.index);
        let pages = crowd.load.pass(round);
        let verify = !asked.no_verify;
        let (together, check) =
            crowd.run(setting, vms, (kind, all), (&pages, generation, seed), verify)?;
        Ok(Data {
            tsc_hz: harness.clock.hz(),
            apart: true,
            generation,
            pages: pages.len() as u64,
            start_nanoseconds: None,
            write: Write { tsc_cycles: 0, interruptions: 0, counts: BTreeMap::new() },
            collect: None,
            harvests: Vec::new(),
            check,
            together,
        })
    }

    fn measure(&mut self, request: &RunRequest<'_, PlannedPass>) -> Result<Data, DirtyError> {
        let RunRequest { index, planned, machine, .. } = request;
        let generation = GENERATIONS + 1 + u64::from(*index);
        let Some(Guests { harness, .. }) = &mut self.guests else {
            return Err(DirtyError::Options(format!("run {index}: no guest was made")));
        };
        let apart = harness.is_apart();
        let tsc_hz = harness.clock.hz();
        let mut stations = harness.stations.iter_mut();
        let station = stations.find(|station| station.tracker == machine.label);
        let station = station.ok_or_else(|| {
            DirtyError::Options(format!(
                "run {index}: this session has no guest with the tracker {}",
                machine.label
            ))
        })?;
        let (pages, done) = match planned.step {
            Step::Pass { pass, seed } => {
                let pages = self.load.pass(pass);
                let done = station.pass(&pages, generation, &mut Rng::new(seed))?;
                (pages, done)
            }
            Step::Fit { round, pages } => {
                let count = usize::try_from(pages).unwrap_or(usize::MAX);
                let pages = self.load.random(count, 1 << 40 | u64::from(round));
                let done = station.measure(&pages, generation)?;
                (pages, done)
            }
            Step::Together { round, vms, seed } => {
                return self.together(request, (round, vms, seed));
            }
        };
        let check = if self.begun.asked.no_verify {
            None
        } else {
            let memory = in_memory(station.slots(), generation)?;
            Some(compared(&self.layout, &memory, &pages, &done))
        };
        let start_nanoseconds = done.collected.as_ref().map(|_| station.start_ns);
        Ok(Data {
            tsc_hz,
            apart,
            generation,
            pages: pages.len() as u64,
            start_nanoseconds,
            write: Write {
                tsc_cycles: done.wrote.cycles,
                interruptions: done.wrote.interruptions,
                counts: done.wrote.counts,
            },
            collect: done.collected.map(|collected| Collect {
                nanoseconds: collected.total_ns,
                slot_nanoseconds: collected.slot_ns,
            }),
            harvests: done.harvested.into_iter().map(Harvest::from).collect(),
            check,
            together: Vec::new(),
        })
    }
}

impl Runner<PlannedPass> for Passes {
    type Run = DataRun<Data>;

    fn run(&mut self, request: &RunRequest<'_, PlannedPass>) -> Result<Self::Run> {
        self.wait_for_frame(request.planned).map_err(DirtyError::classified)?;
        let begin = clock::read();
        let data = self.measure(request).map_err(DirtyError::classified)?;
        let total_ns = clock::monotonic() - begin.monotonic_ns;
        Ok(DataRun { head: request.head(begin, total_ns), data })
    }

    fn summary(&self, run: &Self::Run) -> String {
        if !run.data.together.is_empty() {
            let slowest = run.data.together.iter().map(|one| one.collect_nanoseconds);
            let slowest = slowest.fold(0.0, f64::max);
            return format!("{} VMs, {:.1} us to tell", run.data.together.len(), slowest / 1e3);
        }
        match &run.data.collect {
            Some(collect) => format!("{:.1} us to tell", collect.nanoseconds / 1e3),
            None => format!("{} pages written", run.data.pages),
        }
    }
}
