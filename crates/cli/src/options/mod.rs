//! Options that several commands take.

mod machine;
mod many;
mod runs;
mod views;

pub use machine::Machine;
pub use many::Many;
pub use runs::Runs;
pub use views::{Views, Watch};

/// A share in percent, as `--fail-if-slower` takes it: with NaN nothing would ever fail.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("expected a number, 0 or more".into()),
    }
}
