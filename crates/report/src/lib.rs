//! What every result says, as `vmeter-render` draws it.

pub mod doctor;
pub mod explain;
pub mod migrate;
pub mod runs;
pub mod trace;

pub use doctor::DoctorReport;
pub use explain::ExplainReport;
pub use migrate::MigrateReport;
pub use runs::{RunSource, RunsExport, RunsReport};
pub use trace::{NamedTrace, TraceStatReport};
