//! What every stage of vmeter shares.
//!
//! Data flows one way: machine -> recording -> events -> timeline -> samples ->
//! report. The stages meet in files, and the types of those files live here, so
//! that this crate depends on nothing else in the workspace but `vmeter-base`, and
//! every other crate can depend on it.
//!
//! Units: times are nanoseconds of `CLOCK_MONOTONIC` ([`Ns`]) until they reach
//! a result, where they are seconds in fields that end in `_s`.

pub mod accel;
pub mod end;
pub mod event;
pub mod expression;
pub mod findings;
pub mod identity;
pub mod kernel_log;
pub mod machine;
pub mod moment;
pub mod process;
pub mod range;
pub mod result;
pub mod run;
pub mod shard;
pub mod span;
pub mod sweep;
pub mod tune;
pub mod verdict;

pub use accel::{Accel, AskedAccel};
pub use end::{Cause, End};
pub use event::{Event, EventKind, SnapshotPart, UnitFile};
pub use findings::FindingVerdict;
pub use identity::{Identity, Kind};
pub use machine::{MachineSpec, ResolvedOption};
pub use moment::Moment;
pub use process::Process;
pub use run::{Outcome, RunRecord};
pub use span::{Counts, Span, Timeline};
pub use verdict::{
    ChangeShape, CommitState, DiffVerdict, OverheadVerdict, RangeVerdict, TrendVerdict, Verdict,
};
pub use vmeter_base::{estimate, time, Estimate, Ns};

/// The version of everything that vmeter keeps on disk. Exports have one of their own
/// (`vmeter_render::EXPORT`).
pub const SCHEMA: &str = "vmeter/1";
