//! Result of `vmeter explain`: why it is slow, each link of the chain with its evidence.

use crate::kind::{Kind, Modifier};
use vmeter_base::Envelope;
pub use vmeter_timebase::Alignment;

/// What `vmeter explain` found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExplainResult {
    /// Head.
    pub envelope: Envelope,
    /// The traces, and how they were put on one time base.
    pub files: Vec<ExplainedFile>,
    /// Time from the first event to the last, s, where the clock measures time.
    pub duration_s: Option<f64>,
    /// Whose time is explained, and why theirs.
    pub followed: Vec<Followed>,
    /// How each vCPU's time divides.
    pub vcpus: Vec<VcpuSplit>,
    /// Where the time of whom findings are about went.
    pub trees: Vec<Branch>,
    /// The longest waits of these, over time.
    pub waits: Vec<LongWait>,
    /// What stands out, worst first; empty for a healthy trace.
    pub findings: Vec<Finding>,
    /// What limits the figures: lost events, clocks without a rate.
    pub warnings: Vec<String>,
}

/// A part of somebody's time, and what it went into.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Branch {
    /// What it is: a thread, in a call, waiting for another, and so on.
    pub name: String,
    /// Time, s, where the clock measures time.
    pub time_s: Option<f64>,
    /// As a share of the whole, 0 to 1.
    pub share: f64,
    /// Calls or stretches.
    pub count: u64,
    /// What it went into, largest first.
    pub parts: Vec<Branch>,
}

/// A wait, and what those did meanwhile who were waited for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LongWait {
    /// Whose.
    pub subject: String,
    /// When it began, s from the first event.
    pub start_s: f64,
    /// How long it was, s.
    pub time_s: f64,
    /// By thread, who waits first.
    pub lanes: Vec<WaitLane>,
}

/// What a thread did meanwhile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WaitLane {
    /// Which.
    pub thread: String,
    /// What, from when to when, s from the beginning of the wait; in order.
    pub pieces: Vec<(String, f64, f64, bool)>,
}

/// Somebody whose time is explained.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Followed {
    /// Who.
    pub subject: String,
    /// Why they and not others.
    pub because: String,
}

/// A trace among those explained together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExplainedFile {
    /// As it was named.
    pub file: String,
    /// Its format.
    pub format: String,
    /// Its clock.
    pub clock: String,
    /// Events read.
    pub events: u64,
    /// Events known to be missing.
    pub lost_events: u64,
    /// How its time stamps were brought to the common base.
    pub alignment: Alignment,
}

/// Where a vCPU's time went.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VcpuSplit {
    /// Name: thread or domain and vCPU.
    pub vcpu: String,
    /// Time from its first event to its last, s.
    pub total_s: Option<f64>,
    /// Parts, largest first.
    pub parts: Vec<VcpuPart>,
}

/// A part of a vCPU's time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VcpuPart {
    /// `guest`, `KVM`, `user space`, `waiting for a CPU`, …
    pub name: String,
    /// Length, s.
    pub time_s: Option<f64>,
    /// Share of the vCPU's time, 0 to 1.
    pub share: f64,
}

/// How much there is to gain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Up to 5 % of the traced time.
    #[default]
    Low,
    /// From 5 % of the traced time.
    Medium,
    /// From 15 % of the traced time.
    High,
}

impl Severity {
    /// Severity by the share of the traced time that would be saved: 15 % is beyond what
    /// runs of one machine differ by, 5 % is what a comparison of two runs still shows.
    pub fn of_share(share: f64) -> Severity {
        let mut reached = [Severity::High, Severity::Medium].into_iter();
        reached.find(|s| share >= s.least_share()).unwrap_or(Severity::Low)
    }

    /// From which share of the traced time on it is given, if nothing limits it.
    pub fn least_share(self) -> f64 {
        match self {
            Severity::High => 0.15,
            Severity::Medium => 0.05,
            Severity::Low => 0.0,
        }
    }

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

/// One thing that stands out, with its causes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Finding {
    /// The cause.
    pub kind: Kind,
    /// What is special about it.
    pub modifier: Option<Modifier>,
    /// By the share of the traced time.
    pub severity: Severity,
    /// What is slow, e.g. `port 0x1f7 write (IDE 1)`.
    pub subject: String,
    /// One sentence.
    pub summary: String,
    /// Time that would be saved, s, where the clock measures time.
    pub saving_s: Option<f64>,
    /// The interval that it is in, were the same recorded again, at 95 %, s: from how much its
    /// instances differ and how many there were.
    pub saving_ci95_s: Option<[f64; 2]>,
    /// The same as a share of the traced time, 0 to 1.
    pub saving_share: f64,
    /// The way from the subject to where the time ends, a thread each.
    pub way: Vec<Step>,
    /// The ways that the rest of the subject's time goes, largest first.
    pub besides: Vec<Vec<Step>>,
    /// From what is seen to what causes it.
    pub chain: Vec<Link>,
    /// What to change.
    pub suggestion: String,
    /// A command that would prove it.
    pub confirm: String,
    /// It is about what threads do with their whole lives.
    pub life: bool,
    /// It is what the trace has beyond the one it is compared with.
    pub minus_baseline: bool,
    /// It is about threads that are called as was asked.
    pub called: bool,
    /// Of those as severe it is told after others: waits that nobody asked for (1), a loop that waits for
    /// nobody (2), what works in no loop or was not asked about (3).
    pub after: u8,
}

/// A thread on the way from a subject to where its time ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// Who: the subject, or who is waited for.
    pub who: String,
    /// What it does most of the time.
    pub doing: String,
    /// Time of that, s, where the clock measures time.
    pub time_s: Option<f64>,
    /// As a share of the subject's time, 0 to 1.
    pub share: f64,
    /// The call in which it waits for a lock, which the next or another of its own name holds; empty
    /// outside of any; none if it waits for no lock.
    pub lock: Option<String>,
}

/// A link of a chain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Link {
    /// What is claimed.
    pub claim: String,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Numbers and events behind a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// How many times.
    pub count: Option<u64>,
    /// Time in all, s.
    pub total_s: Option<f64>,
    /// Further figures by name.
    pub figures: std::collections::BTreeMap<String, f64>,
    /// Events to look at.
    pub events: Vec<EventRef>,
    /// Events known to be lost while it was counted: counts are at least those given.
    pub lost_events: Option<u64>,
}

/// Where an event is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventRef {
    /// File.
    pub file: String,
    /// Stamp as the trace has it, in its own ticks.
    pub timestamp: u64,
    /// Time from the first event of all files to it, s, where the clock measures time.
    pub age_s: Option<f64>,
    /// CPU, where the trace says.
    pub cpu: Option<u32>,
    /// Thread, where the trace says.
    pub tid: Option<i32>,
    /// Name of the event.
    pub event: String,
}
