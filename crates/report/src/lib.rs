//! What every result says, as `vmeter-render` draws it.

pub mod migrate;

pub use migrate::MigrateReport;
