//! The measurement: passes, with trackers, slots and strategies taking turns.

use crate::bitmaps::Harvested;
use crate::check::{expected, in_memory, whole, Check, Where};
use crate::clock::Calibration;
use crate::layout::{Layout, PAGE};
use crate::placement::Placement;
use crate::source::TrackerKind;
use crate::station::{mean_counts, missing, Pass, Setting, Station};
use crate::workload::{Kind, Page, Workload};
use crate::{advice, fits, memory, summary, DirtyError};
use dirty_log::StrategyKind;
use std::time::Duration;
use vmeter_kvm_probe::{probe, Ring};
use vmeter_model::dirty::{
    DirtyLayout, DirtyPoint, DirtyResult, DirtyRow, DirtySkipped, DirtySlot, DirtyTracker,
    DirtyWorkload,
};
use vmeter_model::result::Envelope;
use vmeter_stats::estimate;
use vmeter_stats::rng::Rng;

/// The publication's guest writes to a buffer of 1 GB.
pub const PUBLISHED_BUFFER: u64 = 1 << 30;
/// Pages more than this make a pass too long: a first write to a protected page is a fault.
const DEFAULT_BUFFER: u64 = 256 << 20;
/// Shares of the buffer whose passes the fits are made of, besides those measured.
const FIT_SHARES: [f64; 4] = [0.0, 0.001, 0.01, 0.1];
const FIT_ROUNDS: u32 = 3;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the guest does.
    pub workload: Kind,
    /// Its slots; none for the publication's.
    pub layout: Option<Layout>,
    /// Trackers, each once.
    pub trackers: Vec<TrackerKind>,
    /// Strategies, each once.
    pub strategies: Vec<StrategyKind>,
    /// Passes; none for as many as the publication shows.
    pub passes: Option<u32>,
    /// Seed of pages and orders.
    pub seed: u64,
    /// Check every bit.
    pub verify: bool,
    /// Share of the buffer written in a pass (random, sequential), 0 to 1.
    pub share: f64,
    /// The buffer, bytes; none for 256 MiB.
    pub buffer: Option<u64>,
    /// Memory that all slots may take, bytes; none for half of what is available.
    pub memory: Option<u64>,
    /// Frames a second (gui).
    pub hz: u32,
    /// The guest's privilege level: 0 or 3.
    pub ring: u8,
    /// Entries of a vCPU's dirty ring.
    pub ring_entries: usize,
    /// Measure other numbers of dirty pages, too.
    pub fit: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workload: Kind::Migration,
            layout: None,
            trackers: TrackerKind::ALL.to_vec(),
            strategies: StrategyKind::ALL.to_vec(),
            passes: None,
            seed: 1,
            verify: true,
            share: 0.5,
            buffer: None,
            memory: None,
            hz: 60,
            ring: 3,
            ring_entries: 65_536,
            fit: true,
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), DirtyError> {
        let wrong = |text: &str| Err(DirtyError::Options(text.into()));
        if self.trackers.is_empty() || self.strategies.is_empty() {
            return wrong("no tracker or no strategy is left: name at least one of each");
        }
        if !(0.0..=1.0).contains(&self.share) {
            return wrong("the share of dirty pages is between 0 and 100 percent");
        }
        if !self.ring_entries.is_power_of_two() || !(256..=65_536).contains(&self.ring_entries) {
            return wrong("a dirty ring has a power of two of entries, 256 to 65536");
        }
        if self.passes == Some(0) || !(1..=1000).contains(&self.hz) {
            return wrong("passes are 1 and more, frames a second 1 to 1000");
        }
        if self.buffer.is_some_and(|bytes| bytes < PAGE) {
            return wrong("a buffer has 4096 bytes and more");
        }
        Ok(())
    }

    fn passes(&self) -> u32 {
        self.passes.unwrap_or(if self.workload == Kind::Migration { 3 } else { 5 })
    }
}

/// The ring asked for, if this KVM runs it by itself.
fn native(ring: u8) -> Result<Ring, DirtyError> {
    let found = probe(Duration::from_secs(2))?;
    let (kind, quality) = match ring {
        0 => (Ring::Zero, &found.ring0),
        3 => (Ring::Three, &found.ring3),
        _ => return Err(DirtyError::Options(format!("ring {ring}: 0 or 3"))),
    };
    if quality.is_native() {
        return Ok(kind);
    }
    let hint = if ring == 0 && found.ring3.is_native() {
        "ring 3 is native: use --ring 3"
    } else {
        "run it on a host with VMX or SVM, or with nested virtualisation switched on"
    };
    Err(DirtyError::NotNative { ring, found: quality.to_string(), hint })
}

/// Is told what is going on; says whether to go on.
pub type News<'a> = dyn FnMut(&str) -> bool + 'a;

fn tell(news: &mut News<'_>, what: &str) -> Result<(), DirtyError> {
    if news(what) {
        Ok(())
    } else {
        Err(DirtyError::Interrupted)
    }
}

/// Everything that is measured, and what it is measured with.
struct Session<'a> {
    options: &'a Options,
    layout: Layout,
    load: Workload,
    stations: Vec<Station>,
    skipped: Vec<DirtySkipped>,
    rng: Rng,
    generation: u64,
    check: Check,
    rows: Vec<DirtyRow>,
    points: Vec<DirtyPoint>,
    /// By station.
    passes: Vec<Vec<Pass>>,
    clock: Calibration,
    /// Harvester and vCPUs are on different CPUs.
    apart: bool,
}

/// Runs the measurement; `news` is told what is going on, and ends it by `false`.
///
/// # Errors
/// Options that can't be; /dev/kvm is missing or runs no guest code natively; no tracker is
/// to be had; the guest died.
pub fn run(options: &Options, news: &mut News<'_>) -> Result<DirtyResult, DirtyError> {
    options.check()?;
    let clock = Calibration::begin();
    let ring = native(options.ring)?;
    let placement = Placement::apart();
    let asked = options.layout.clone().unwrap_or_else(|| options.workload.layout());
    let budget = options.memory.unwrap_or_else(memory::budget);
    let layout = asked.clone().fitted(budget)?;
    let buffer = options.buffer.unwrap_or(DEFAULT_BUFFER) as f64 * layout.scale;
    let load = Workload::new(options.workload, &layout, buffer as u64, options.share, options.seed);
    tell(news, "filling the guests' memory")?;
    let files = memory::files(&layout)?;
    let setting = Setting {
        layout: &layout,
        files: &files,
        strategies: &options.strategies,
        ring,
        ring_entries: options.ring_entries,
        cpus: placement.as_ref().map(|placement| placement.others),
        most_pages: load.all().len(),
    };
    let (stations, skipped) = stations(options, setting, &load.all(), news)?;
    let passes = stations.iter().map(|_| Vec::new()).collect();
    let mut session = Session {
        options,
        load,
        stations,
        skipped,
        rng: Rng::new(options.seed),
        generation: 1 << 32,
        check: Check::default(),
        rows: Vec::new(),
        points: Vec::new(),
        passes,
        clock,
        apart: placement.is_some(),
        layout,
    };
    session.measure(news)?;
    if options.fit {
        session.fit(news)?;
    }
    Ok(session.result(&asked, budget))
}

/// A guest without a tracker, and one for each that is to be had.
fn stations(
    options: &Options,
    setting: Setting<'_>,
    warm: &[Page],
    news: &mut News<'_>,
) -> Result<(Vec<Station>, Vec<DirtySkipped>), DirtyError> {
    let mut stations = vec![Station::new(setting, None, warm, 1)?];
    let mut skipped = Vec::new();
    for (&kind, generation) in options.trackers.iter().zip(2..) {
        tell(news, &format!("making a guest for {kind}"))?;
        let reason = match missing(kind, options.ring_entries)? {
            Some(reason) => reason,
            None => match Station::new(setting, Some(kind), warm, generation) {
                Ok(station) => {
                    stations.push(station);
                    continue;
                }
                Err(DirtyError::Died { exit }) => exit,
                Err(error) => error.to_string(),
            },
        };
        skipped.push(DirtySkipped { tracker: kind.name().into(), reason });
    }
    if stations.len() == 1 {
        let reasons: Vec<String> =
            skipped.iter().map(|s| format!("{}: {}", s.tracker, s.reason)).collect();
        return Err(DirtyError::NoTracker(reasons.join("; ")));
    }
    Ok((stations, skipped))
}

impl Session<'_> {
    fn turns(&mut self) -> Vec<usize> {
        let mut turns: Vec<usize> = (0..self.stations.len()).collect();
        self.rng.shuffle(&mut turns);
        turns
    }

    fn measure(&mut self, news: &mut News<'_>) -> Result<(), DirtyError> {
        let frames = match self.options.workload {
            Kind::Gui => Some(crate::frames::Frames::new(self.options.hz)?),
            _ => None,
        };
        let count = self.options.passes();
        for pass in 0..count {
            if let Some(frames) = &frames {
                frames.wait()?;
            }
            let pages = self.load.pass(pass);
            for turn in self.turns() {
                self.generation += 1;
                let station = &mut self.stations[turn];
                tell(news, &format!("pass {} of {count}, {}", pass + 1, station.tracker))?;
                let done = station.pass(&pages, self.generation, &mut self.rng)?;
                self.verify(turn, pass, &pages, &done)?;
                self.note(turn, pass, &pages, done);
            }
        }
        Ok(())
    }

    /// Passes with other numbers of dirty pages, for the trackers' lines.
    fn fit(&mut self, news: &mut News<'_>) -> Result<(), DirtyError> {
        let most = self.load.all().len();
        let mut counts: Vec<usize> =
            FIT_SHARES.iter().map(|share| (most as f64 * share).ceil() as usize).collect();
        counts.dedup();
        for round in 0..FIT_ROUNDS {
            for &count in &counts {
                let pages = self.load.random(count, 1 << 40 | u64::from(round));
                for turn in self.turns() {
                    tell(news, &format!("fits, round {} of {FIT_ROUNDS}", round + 1))?;
                    self.generation += 1;
                    let done = self.stations[turn].measure(&pages, self.generation)?;
                    self.verify(turn, self.options.passes() + round, &pages, &done)?;
                    self.point(turn, &pages, &done);
                }
            }
        }
        Ok(())
    }

    fn point(&mut self, turn: usize, pages: &[Page], done: &Pass) {
        self.points.push(DirtyPoint {
            tracker: self.stations[turn].tracker.into(),
            dirty_pages: pages.len() as u64,
            collect_nanoseconds: done.collected.as_ref().map(|collected| collected.total_ns),
            // Known when the session is over.
            write_nanoseconds: done.wrote.cycles,
        });
    }

    fn verify(
        &mut self,
        turn: usize,
        pass: u32,
        pages: &[Page],
        done: &Pass,
    ) -> Result<(), DirtyError> {
        if !self.options.verify {
            return Ok(());
        }
        let station = &self.stations[turn];
        let place = Where { pass, tracker: station.tracker };
        let written = expected(&self.layout, pages);
        let memory = in_memory(station.slots(), self.generation)?;
        let (check, layout) = (&mut self.check, &self.layout);
        check.wrong += u64::from(!done.same);
        for (slot, written) in written.iter().enumerate() {
            check.compare(place, "memory", layout, slot, written, &memory[slot]);
            if let Some(told) = done.told.get(slot) {
                let told = whole(written.len(), told);
                check.compare(place, "tracker", layout, slot, written, &told);
            }
        }
        for Harvested { slot, strategy, words, .. } in &done.harvested {
            let found = whole(written[*slot].len(), words);
            check.compare(place, strategy.name(), layout, *slot, &written[*slot], &found);
        }
        Ok(())
    }

    /// Keeps what a pass measured.
    fn note(&mut self, turn: usize, pass: u32, pages: &[Page], mut done: Pass) {
        self.point(turn, pages, &done);
        for harvested in std::mem::take(&mut done.harvested) {
            let plan = &self.layout.slots[harvested.slot];
            let told = done.collected.as_ref().and_then(|c| c.slot_ns.as_ref());
            let dirty = harvested.words.iter().map(|(_, word)| u64::from(word.count_ones()));
            self.rows.push(DirtyRow {
                pass,
                slot: plan.number,
                slot_bytes: plan.bytes,
                dirty_pages: dirty.sum(),
                strategy: harvested.strategy.name().into(),
                tracker: self.stations[turn].tracker.into(),
                // Known when the session is over.
                nanoseconds: 0.0,
                tsc_cycles: vmeter_stats::median(&harvested.samples),
                first_nanoseconds: harvested.first_cycles,
                collect_nanoseconds: told.and_then(|ns| ns.get(harvested.slot).copied()),
                samples_tsc_cycles: harvested.samples,
                calls: harvested.calls,
            });
        }
        done.told = Vec::new();
        self.passes[turn].push(done);
    }

    fn trackers(&self, ns: f64) -> Vec<DirtyTracker> {
        let models = fits::models(&self.points);
        let write_ns = |passes: &[Pass]| -> Vec<f64> {
            passes.iter().map(|pass| pass.wrote.cycles * ns).collect()
        };
        let untracked: f64 = write_ns(&self.passes[0]).iter().sum();
        let pages: Vec<u64> =
            (0..self.options.passes()).map(|pass| self.load.pass(pass).len() as u64).collect();
        let tracker = |(station, passes): (&Station, &Vec<Pass>)| {
            let collect: Vec<f64> =
                passes.iter().filter_map(|p| Some(p.collected.as_ref()?.total_ns)).collect();
            let writes = write_ns(passes);
            let wrote = pages.iter().zip(&writes).filter(|(&pages, _)| pages > 0);
            let rates: Vec<f64> = wrote.map(|(&pages, ns)| pages as f64 / ns * 1e9).collect();
            let counts: Vec<_> = passes.iter().map(|pass| pass.wrote.counts.clone()).collect();
            let stops: u32 = passes.iter().map(|pass| pass.wrote.interruptions).sum();
            let tracked = station.tracker != "none";
            DirtyTracker {
                tracker: station.tracker.into(),
                start_nanoseconds: station.start_ns,
                collect_nanoseconds: (!collect.is_empty()).then(|| estimate(&collect)),
                collect_samples_ns: collect,
                pages_per_s: (!rates.is_empty()).then(|| estimate(&rates)),
                slowdown: (tracked && untracked > 0.0)
                    .then(|| writes.iter().sum::<f64>() / untracked),
                write_samples_ns: writes,
                pages: pages.clone(),
                counts: mean_counts(&counts),
                interruptions: f64::from(stops) / passes.len().max(1) as f64,
                model: models.get(station.tracker).copied(),
            }
        };
        self.stations.iter().zip(&self.passes).map(tracker).collect()
    }

    fn result(mut self, asked: &Layout, budget: u64) -> DirtyResult {
        let tsc_hz = self.clock.hz();
        let ns = 1e9 / tsc_hz;
        for row in &mut self.rows {
            row.nanoseconds = row.tsc_cycles * ns;
            row.first_nanoseconds *= ns;
        }
        self.points.iter_mut().for_each(|point| point.write_nanoseconds *= ns);
        let trackers = self.trackers(ns);
        let models = fits::models(&self.points);
        let measured = self.points.iter().map(|point| point.dirty_pages).max().unwrap_or(0);
        let crossovers = fits::crossovers(&models, measured, self.layout.bytes() / PAGE);
        let advice = advice::advice(&trackers, &self.rows);
        let (warnings, hints) = self.remarks(&trackers);
        let places = self.layout.places().into_iter().zip(&self.layout.slots);
        let slots: Vec<DirtySlot> =
            places.map(|(gpa, s)| DirtySlot { slot: s.number, slot_bytes: s.bytes, gpa }).collect();
        let summaries = summary::summaries(&slots, &self.rows);
        DirtyResult {
            envelope: Envelope::default(),
            workload: DirtyWorkload {
                name: self.load.kind.name().into(),
                description: self.load.description(),
                buffer_bytes: self.load.buffer_bytes(),
                share: self.load.share(),
                hz: (self.load.kind == Kind::Gui).then_some(self.options.hz),
                ring: self.options.ring,
                passes: self.options.passes(),
                seed: self.options.seed,
            },
            layout: DirtyLayout {
                source: self.layout.source.clone(),
                scale: self.layout.scale,
                scaling: scaling(asked, &self.layout, budget, &self.load),
                memory_bytes: self.layout.bytes(),
                slots,
            },
            speedup: summary::speedup(&summaries),
            summaries,
            verified: self.check.bits > 0 && self.check.wrong == 0,
            checked_bits: self.check.bits,
            mismatches: self.check.mismatches,
            rows: self.rows,
            trackers,
            skipped: self.skipped,
            points: self.points,
            crossovers,
            advice,
            tsc_hz,
            warnings,
            hints,
        }
    }

    fn remarks(&self, trackers: &[DirtyTracker]) -> (Vec<String>, Vec<String>) {
        let mut warnings = Vec::new();
        if self.check.wrong > 0 {
            warnings.push(format!(
                "{} of {} bits are wrong: this tracker or this KVM can't be relied on",
                self.check.wrong, self.check.bits
            ));
        }
        if !self.apart {
            warnings.push(
                "one CPU: the guest did not run while its pages were harvested, so no harvest \
                 waited for it"
                    .into(),
            );
        }
        if !self.options.verify {
            warnings.push("no bit was checked (--no-verify)".into());
        }
        if trackers.iter().any(|tracker| tracker.tracker != "none" && tracker.counts.is_empty())
            && self.load.share() != Some(0.0)
        {
            warnings.push("KVM counts neither exits nor faults here (KVM_GET_STATS_FD)".into());
        }
        let mut hints = Vec::new();
        if self.options.workload == Kind::Migration && self.options.buffer.is_none() {
            hints.push("vmeter dirty --workload migration --buffer 1024".into());
        }
        (warnings, hints)
    }
}

/// What was made smaller, and why.
fn scaling(asked: &Layout, layout: &Layout, budget: u64, load: &Workload) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let slots = if layout.scale < 1.0 {
        format!(
            "slots above 32 MiB at {:.3} of their size: {} MiB may be used, they would take {}",
            layout.scale,
            mib(budget),
            mib(asked.bytes())
        )
    } else {
        "slots at full size".into()
    };
    match load.kind {
        Kind::Migration if load.buffer_bytes() != PUBLISHED_BUFFER => format!(
            "{slots}; a buffer of {} MiB where the publication's guest has 1024",
            mib(load.buffer_bytes())
        ),
        _ => slots,
    }
}
