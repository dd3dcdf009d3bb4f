//! What every result says, as `vmeter-render` draws it.

pub mod bench;
pub mod boot;
pub mod diff;
pub mod dirty;
pub mod doctor;
pub mod explain;
mod hosts;
pub mod irq;
pub mod migrate;
mod parts;
pub mod range;
pub mod runs;
pub mod sweep;
pub mod trace;

pub use bench::BenchReport;
pub use boot::{BootReport, BootView, TreeView};
pub use diff::DiffReport;
pub use dirty::DirtyReport;
pub use doctor::DoctorReport;
pub use explain::ExplainReport;
pub use irq::IrqReport;
pub use migrate::MigrateReport;
pub use range::RangeReport;
pub use runs::{RunSource, RunsExport, RunsReport};
pub use sweep::SweepReport;
pub use trace::{NamedTrace, TraceStatReport};
