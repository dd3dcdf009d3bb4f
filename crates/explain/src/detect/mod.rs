//! Detectors: each looks at the index for one kind of cause.
//!
//! A detector is one file and one line in [`DETECTORS`]. It says what it sees of which
//! subject and how much time would be saved; [`crate::rank`] joins what several say of
//! one subject. Thresholds are in [`view`], with their reasons.

mod blame_tree;
mod busy;
pub mod comm_filter;
mod contrast;
mod device_model;
mod exits;
mod followed;
mod gap;
pub mod growth;
mod kernel_events;
pub mod levels;
mod log_gaps;
mod logged;
mod missing_events;
mod names;
mod outlier;
pub mod outline;
mod patterns;
pub mod segments;
mod signals;
mod small_accesses;
pub mod throttled;
mod vcpus;
mod view;
mod waits;

use crate::diagnose::Aside;
use crate::evidence::groups::GroupId;
use crate::evidence::subject::Key;
use crate::kind::Why;
use crate::result::{Link, Severity, Step};
pub use blame_tree::pictures;
pub use busy::warnings as busy_host;
pub use followed::followed;
pub use missing_events::{nobody, not_recorded, partial};
pub use outlier::outlier;
pub use view::{Peers, View, LEAST_COUNT, LEAST_SHARE};
pub use waits::{is_grace, polls, syncs, waits};

/// What a detector has found.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    /// What was seen.
    pub why: Why,
    /// The request it is about; none if it is about the machine.
    pub key: Option<Key>,
    /// What is slow.
    pub subject: String,
    /// Threads that it is about besides its subject.
    pub with: Option<GroupId>,
    /// Ticks that would be saved.
    pub saving: u64,
    /// One sentence.
    pub summary: String,
    /// The way from the subject to where the time ends.
    pub way: Vec<Step>,
    /// What else the same subject's time goes into.
    pub parts: Vec<Candidate>,
    /// The thread at its end, where a profile would show the cause.
    pub culprit: Option<String>,
    /// From what is seen to what causes it.
    pub chain: Vec<Link>,
    /// What to change.
    pub suggestion: String,
    /// What would prove it.
    pub confirm: String,
    /// Standard error of that, ticks, where it is known.
    pub error: Option<f64>,
    /// It is about what threads do with their whole lives.
    pub life: bool,
    /// It is what a trace has beyond its twin's.
    pub minus_baseline: bool,
    /// It is about programs that the recording's maker did not start.
    pub other_program: bool,
    /// Of those as severe it is told after others.
    pub aside: Aside,
    /// It computes or sleeps by itself: told last.
    pub idle: bool,
    /// It is about threads that are called as was asked: told before others of their program.
    pub called: bool,
    /// Its severity whatever it would save, for what is not the machine's own doing.
    pub max_severity: Option<Severity>,
}

impl Candidate {
    /// How severe it is, as far as it may be.
    pub fn severity(&self, view: &View<'_>) -> Severity {
        let severity = Severity::of_share(view.share(self.saving));
        self.max_severity.map_or(severity, |most| severity.min(most))
    }
}

/// One kind of cause.
pub trait Detector: Sync {
    /// Everything of its kind in the index.
    fn detect(&self, view: &View<'_>) -> Vec<Candidate>;
}

/// The detectors.
pub static DETECTORS: &[&dyn Detector] = &[
    &exits::UnbufferedConsole,
    &exits::PciPorts,
    &small_accesses::SmallAccesses,
    &device_model::DeviceModel,
    &signals::Signals,
    &kernel_events::KernelEvents,
    &logged::SlowInLog,
    &log_gaps::LogGap,
    &gap::Gap,
    &patterns::Patterns,
];
