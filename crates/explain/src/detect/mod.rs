//! Detectors: each looks at the index for one kind of cause.
//!
//! A detector is one file and one line in [`DETECTORS`]. It says what it sees of which
//! subject and how much time would be saved; [`crate::rank`] joins what several say of
//! one subject. Thresholds are in [`view`], with their reasons.

mod accesses;
mod alone;
mod burn;
mod burst;
mod calls;
mod contended;
mod contrast;
mod device_model;
mod every_cpu;
mod exits;
mod followed;
mod gap;
mod growing;
mod growth;
mod habits;
mod ipi;
pub mod levels;
mod life;
mod lock;
mod logged;
mod names;
mod outlier;
mod picture;
mod ping_pong;
mod pinned;
mod quiet;
mod recorded;
mod signals;
mod signs;
mod spent;
mod spins;
mod stands;
mod starved;
pub mod story;
mod throttled;
mod timer;
mod together;
mod vcpus;
mod view;
mod waits;

use crate::evidence::groups::GroupId;
use crate::evidence::subject::{Key, Subject};
use crate::result::{Link, Severity};
pub use alone::waiting_meanwhile;
pub use device_model::KIND as DEVICE_MODEL;
pub use followed::followed;
pub use gap::KIND as GAP;
pub use outlier::{outlier, KIND as OUTLIER_ALONE};
pub use picture::pictures;
pub use recorded::{nobody, not_recorded, partial};
pub use spent::spent;
pub use starved::warnings as busy_host;
pub use view::{View, LEAST_SHARE};
pub use waits::{waits, waits_for_others, writes_data};

/// What a detector has found.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    /// The detector's kind.
    pub kind: &'static str,
    /// The request it is about; none if it is about the machine.
    pub key: Option<Key>,
    /// What is slow.
    pub subject: String,
    /// Threads of whose name it is about, where it is told of their whole lives.
    pub whose: Option<GroupId>,
    /// Ticks that would be saved.
    pub saving: u64,
    /// One sentence.
    pub summary: String,
    /// From what is seen to what causes it.
    pub chain: Vec<Link>,
    /// What to change.
    pub suggestion: String,
    /// What would prove it.
    pub confirm: String,
    /// Standard error of that, ticks, where it is known.
    pub error: Option<f64>,
    /// Ticks beside it that nobody knows the cause of: its bound holds them, too.
    pub left_out: u64,
    /// Told only if there is nothing else: what the host's other programs do.
    pub of_host: bool,
    /// It is about what threads do with their whole lives.
    pub life: bool,
    /// It is what a trace has beyond its twin's.
    pub beyond: bool,
    /// It is about programs that the recording's maker did not start.
    pub foreign: bool,
    /// Of those as severe it is told after others: every program begins like that.
    pub aside: bool,
    /// Its severity whatever it would save, for what is not the machine's own doing.
    pub at_most: Option<Severity>,
}

/// One kind of cause.
pub trait Detector: Sync {
    /// Its name in results.
    fn kind(&self) -> &'static str;

    /// What it sees of one request, for a kind of cause that one request has by itself.
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let _ = (view, key, subject);
        None
    }

    /// Everything of its kind in the index.
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        view.of_each_request(|key, subject| self.of(view, key, subject))
    }
}

/// The detectors.
pub static DETECTORS: &[&dyn Detector] = &[
    &every_cpu::EveryCpu,
    &timer::TimerPaced,
    &burn::UserBurnt,
    &burst::Burst,
    &growing::Growing,
    &lock::LockWait,
    &ping_pong::PingPong,
    &exits::ExitPerByte,
    &exits::PciPorts,
    &accesses::AccessByAccess,
    &device_model::DeviceModel,
    &starved::Starved,
    &ipi::IpiStorm,
    &signals::Signals,
    &signs::Signs,
    &calls::SlowCall,
    &logged::SlowInLog,
    &stands::StandsStill,
    &gap::Gap,
    &life::Lives,
];
