//! What is asked: as it was typed, and whole, as a session keeps it.

use crate::layout::{Layout, PAGE};
use crate::result::DirtySkipped;
use crate::workload::Kind;
use crate::{DirtyError, TrackerKind};
use serde::{Deserialize, Serialize};
use vmeter_dirty_switch::StrategyKind;

/// Most guests at once.
pub(crate) const MOST_VMS: usize = 64;

/// Pages more than this make a pass too long: a first write to a protected page is a fault.
const DEFAULT_BUFFER: u64 = 256 << 20;

/// What was typed; what is absent is vmeter's choice, or the session's that is gone on with.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CliOptions {
    /// What the guest does.
    pub workload: Option<Kind>,
    /// Its slots; none for the publication's.
    pub slots: Option<Layout>,
    /// Trackers, each once; none for all that this host has.
    pub tracker: Option<Vec<TrackerKind>>,
    /// Strategies, each once; none for all.
    pub strategy: Option<Vec<StrategyKind>>,
    /// Passes that no figure includes; none for none.
    pub warmup: Option<u32>,
    /// Share of the buffer written in a pass (random, sequential), percent.
    pub dirty: Option<f64>,
    /// The buffer, MiB; none for 256.
    pub buffer: Option<u64>,
    /// Memory that all slots may take, MiB; none for half of what is available.
    pub memory: Option<u64>,
    /// Frames a second (gui).
    pub hz: Option<u32>,
    /// The guest's privilege level: 0 or 3.
    pub ring: Option<u8>,
    /// Entries of a vCPU's dirty ring.
    pub ring_entries: Option<usize>,
    /// Check no bit.
    pub no_verify: bool,
    /// Measure no other numbers of dirty pages.
    pub no_fit: bool,
    /// Numbers of VMs that are asked at once, besides.
    pub vms: Vec<usize>,
}

/// Everything that was asked, fields as in [`CliOptions`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) workload: Kind,
    pub(crate) slots: Option<Layout>,
    pub(crate) tracker: Vec<TrackerKind>,
    pub(crate) strategy: Vec<StrategyKind>,
    /// Measured passes.
    pub(crate) passes: u32,
    pub(crate) warmup: u32,
    pub(crate) dirty: f64,
    pub(crate) buffer: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) hz: u32,
    pub(crate) ring: u8,
    pub(crate) ring_entries: usize,
    pub(crate) no_verify: bool,
    pub(crate) no_fit: bool,
    /// Numbers of VMs that are asked at once, besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) vms: Vec<usize>,
}

impl Config {
    /// With a choice for what was not typed; passes: as many as the publication shows.
    ///
    /// # Errors
    /// Options that can't be.
    pub(crate) fn new(given: &CliOptions, passes: Option<u32>) -> Result<Self, DirtyError> {
        let given = given.clone();
        let workload = given.workload.unwrap_or(Kind::Migration);
        let published = if workload == Kind::Migration { 3 } else { 5 };
        let asked = Self {
            workload,
            slots: given.slots,
            tracker: given.tracker.unwrap_or_else(|| TrackerKind::ALL.to_vec()),
            strategy: given.strategy.unwrap_or_else(|| StrategyKind::ALL.to_vec()),
            passes: passes.unwrap_or(published),
            warmup: given.warmup.unwrap_or(0),
            dirty: given.dirty.unwrap_or(50.0),
            buffer: given.buffer,
            memory: given.memory,
            hz: given.hz.unwrap_or(60),
            ring: given.ring.unwrap_or(3),
            ring_entries: given.ring_entries.unwrap_or(65_536),
            no_verify: given.no_verify,
            no_fit: given.no_fit,
            vms: given.vms,
        };
        asked.check()?;
        Ok(asked)
    }

    /// Refuses what can't be, whether it was typed or read.
    pub(crate) fn check(&self) -> Result<(), DirtyError> {
        let wrong = |text: &str| Err(DirtyError::Options(text.into()));
        if self.tracker.is_empty() || self.strategy.is_empty() {
            return wrong("no tracker or no strategy is selected: name at least one of each");
        }
        if !(0.0..=100.0).contains(&self.dirty) {
            return wrong("the share of dirty pages is a percentage, 0 to 100");
        }
        if !self.ring_entries.is_power_of_two() || !(256..=65_536).contains(&self.ring_entries) {
            return wrong(
                "the number of entries of a dirty ring must be a power of two from 256 \
                to 65536",
            );
        }
        if self.passes == 0 || !(1..=1000).contains(&self.hz) {
            return wrong(
                "the number of passes must be at least 1, and frames per second must be \
                1 to 1000",
            );
        }
        if self.buffer.is_some_and(|mib| !(1..=1 << 20).contains(&mib)) {
            return wrong("the size of the buffer must be 1 MiB to 1 TiB");
        }
        if let Some(vms) = self.vms.iter().find(|vms| !(1..=MOST_VMS).contains(*vms)) {
            return wrong(&format!("--vms {vms}: expected 1 to {MOST_VMS}"));
        }
        self.slots.as_ref().map_or(Ok(()), Layout::check)
    }

    /// The guest's slots, before they are scaled.
    pub(crate) fn layout(&self) -> Layout {
        self.slots.clone().unwrap_or_else(|| self.workload.layout())
    }

    /// Bytes that the slots of one VM may use, of so many.
    pub(crate) fn limit(&self, budget_bytes: u64) -> u64 {
        if self.vms.is_empty() {
            budget_bytes
        } else {
            budget_bytes / 2
        }
    }

    /// The slots as they fit into so many bytes: half of them, where several VMs at once have
    /// the other half.
    pub(crate) fn fitted(&self, budget_bytes: u64) -> Result<Layout, DirtyError> {
        self.layout().fitted(self.limit(budget_bytes))
    }

    /// The slots of each of several VMs at once, which share half of so many bytes.
    pub(crate) fn shared(&self, budget_bytes: u64) -> Result<Layout, DirtyError> {
        let vms = self.vms.iter().copied().max().unwrap_or(1) as u64;
        let (layout, most) = (self.layout(), budget_bytes / 2 / vms);
        let least = layout.least();
        layout.fitted(most).map_err(|_| DirtyError::TooManyVms { vms, least, most })
    }

    /// Share of the buffer written in a pass, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.dirty / 100.0
    }

    /// The buffer at a layout's scale, bytes, at least a page.
    pub(crate) fn buffer_bytes(&self, scale: f64) -> u64 {
        let whole = self.buffer.map_or(DEFAULT_BUFFER, |mib| mib << 20);
        ((whole as f64 * scale) as u64).max(PAGE)
    }
}

/// What a session was begun with: what was asked, and what was found out for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedConfig {
    #[serde(flatten)]
    pub(crate) asked: Config,
    /// Memory that all slots might take, bytes.
    pub(crate) budget_bytes: u64,
    /// What the buffer came to, bytes.
    pub(crate) buffer_bytes: u64,
    /// Trackers that were asked for and are not to be had.
    pub(crate) skipped: Vec<DirtySkipped>,
}

impl SavedConfig {
    /// The slots as they are measured.
    ///
    /// # Errors
    /// They do not fit; not what a session begins with.
    pub(crate) fn layout(&self) -> Result<Layout, DirtyError> {
        self.asked.fitted(self.budget_bytes)
    }

    /// The slots of each of several VMs at once.
    ///
    /// # Errors
    /// They do not fit.
    pub(crate) fn shared_layout(&self) -> Result<Layout, DirtyError> {
        self.asked.shared(self.budget_bytes)
    }

    /// Trackers that are measured.
    pub(crate) fn trackers(&self) -> Vec<TrackerKind> {
        let skipped = |kind: &TrackerKind| self.skipped.iter().any(|s| s.tracker == *kind);
        self.asked.tracker.iter().copied().filter(|kind| !skipped(kind)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_keeps_is_read_back() {
        let slots = Layout::parse(r#"[{"slot": 3, "bytes": "640K"}]"#, "own.json").unwrap();
        let given = CliOptions { slots: Some(slots), hz: Some(30), ..CliOptions::default() };
        let asked = Config::new(&given, None).unwrap();
        let skipped = vec![DirtySkipped { tracker: TrackerKind::Ring, reason: "none".into() }];
        let begun = SavedConfig { asked, budget_bytes: 1 << 30, buffer_bytes: 4096, skipped };
        let json = serde_json::to_value(&begun).unwrap();
        assert_eq!(json["tracker"][0], "kvm-legacy");
        assert_eq!(json["strategy"][2], "switch_opt");
        assert_eq!(serde_json::from_value::<SavedConfig>(json).unwrap(), begun);
        assert_eq!((begun.asked.passes, begun.trackers().len()), (3, 5));
    }

    #[test]
    fn strategies_on_disk_are_those_of_the_command_line() {
        let word = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        for kind in StrategyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(word(serde_json::to_value(kind).unwrap()), kind.name());
        }
    }
}
