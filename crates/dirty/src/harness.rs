//! The guests of a session and what they run on. They share their memory and stay alive from
//! one run to the next; a process that goes on with a session makes them anew.

use crate::clock::Calibration;
use crate::config::Config;
use crate::layout::Layout;
use crate::memory;
use crate::placement::Placement;
use crate::result::DirtySkipped;
use crate::source::TrackerKind;
use crate::station::{missing, Setting, TrackedGuest};
use crate::workload::{Page, Workload};
use crate::DirtyError;
use rustix::thread::CpuSet;
use std::time::Duration;
use vmeter_kvm_probe::{probe, Ring};
use vmeter_session::Watch;

/// Guests, by their machine in the plan: the untracked one first.
#[derive(Debug)]
pub(crate) struct Harness {
    pub(crate) stations: Vec<TrackedGuest>,
    pub(crate) clock: Calibration,
    placement: Option<Placement>,
    /// What several guests at once are made of, besides their memory.
    pub(crate) ring: Ring,
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
        "guest code runs natively only in ring 3: use --ring 3"
    } else {
        "run this command on a host with VMX or SVM, or enable nested virtualisation"
    };
    Err(DirtyError::NotNative { ring, found: quality.to_string(), hint })
}

fn go_on(watch: &Watch<'_>) -> Result<(), DirtyError> {
    if watch.interrupt.is_raised() {
        return Err(DirtyError::Interrupted);
    }
    Ok(())
}

/// Asks what can be asked without a guest: /dev/kvm must run it natively, and have a tracker.
/// Returns the trackers that it has not got.
pub(crate) fn not_here(asked: &Config) -> Result<Vec<DirtySkipped>, DirtyError> {
    native(asked.ring)?;
    let mut skipped = Vec::new();
    for &tracker in &asked.tracker {
        let reason = missing(tracker, asked.ring_entries)?;
        skipped.extend(reason.map(|reason| DirtySkipped { tracker, reason }));
    }
    if skipped.len() == asked.tracker.len() {
        return Err(none_of(&skipped));
    }
    Ok(skipped)
}

impl Harness {
    /// A guest without a tracker and one for each of `trackers` that this host has, with why
    /// the others are not to be had.
    ///
    /// # Errors
    /// /dev/kvm is missing or runs no guest code natively; no tracker is to be had.
    pub(crate) fn new(
        asked: &Config,
        layout: &Layout,
        load: &Workload,
        trackers: &[TrackerKind],
        pin: &[usize],
        watch: &mut Watch<'_>,
    ) -> Result<(Self, Vec<DirtySkipped>), DirtyError> {
        let clock = Calibration::begin();
        let ring = native(asked.ring)?;
        let placement = Placement::apart(pin);
        watch.progress.note("filling the guests' memory");
        let files = memory::files(layout, || go_on(watch))?;
        let warm = load.all();
        let setting = Setting {
            layout,
            files: &files,
            strategies: &asked.strategy,
            ring,
            ring_entries: asked.ring_entries,
            cpus: placement.as_ref().map(|placement| placement.others),
            most_pages: warm.len(),
            interrupt: watch.interrupt,
        };
        let mut stations = vec![TrackedGuest::new(setting, None, &warm, 1)?];
        let mut skipped = Vec::new();
        for (&kind, generation) in trackers.iter().zip(2..) {
            go_on(watch)?;
            watch.progress.note(&format!("making a guest for {kind}"));
            match station(setting, kind, &warm, generation)? {
                Ok(station) => stations.push(station),
                Err(reason) => {
                    go_on(watch)?;
                    skipped.push(DirtySkipped { tracker: kind, reason });
                }
            }
        }
        if stations.len() == 1 {
            return Err(none_of(&skipped));
        }
        Ok((Self { stations, clock, placement, ring }, skipped))
    }

    /// All CPUs that there are, where threads were put on some of them.
    pub(crate) fn all_cpus(&self) -> Option<CpuSet> {
        self.placement.as_ref().map(|placement| placement.before)
    }

    /// Harvester and vCPUs are on different CPUs.
    pub(crate) fn is_apart(&self) -> bool {
        self.placement.is_some()
    }
}

/// A guest for a tracker, or why there is none.
fn station(
    setting: Setting<'_>,
    kind: TrackerKind,
    warm: &[Page],
    generation: u64,
) -> Result<Result<TrackedGuest, String>, DirtyError> {
    if let Some(reason) = missing(kind, setting.ring_entries)? {
        return Ok(Err(reason));
    }
    Ok(match TrackedGuest::new(setting, Some(kind), warm, generation) {
        Ok(station) => Ok(station),
        Err(DirtyError::Died { exit }) => Err(exit),
        Err(error) => Err(error.to_string()),
    })
}

/// What is said where trackers are needed that are not to be had.
pub(crate) fn none_of(skipped: &[DirtySkipped]) -> DirtyError {
    let reasons: Vec<String> =
        skipped.iter().map(|s| format!("{}: {}", s.tracker, s.reason)).collect();
    DirtyError::NoTracker(reasons.join("; "))
}
