//! Whether others wanted the CPUs meanwhile.
//!
//! Figures of half a millisecond are other programs' as soon as one of them runs, and no
//! statistics tells that from a cost. The kernel's pressure stall information does: for how
//! long some thread could run and had no CPU (Documentation/accounting/psi.rst).

use std::time::{Duration, Instant};

const FILE: &str = "/proc/pressure/cpu";

/// A reading to be compared with a later one.
#[derive(Debug)]
pub(crate) struct Pressure {
    since: Instant,
    total_us: Option<u64>,
}

/// Stall time since boot, us, of a line `some avg10=… avg60=… avg300=… total=N`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

fn read() -> Option<u64> {
    total(&std::fs::read_to_string(FILE).ok()?)
}

impl Pressure {
    /// Now.
    pub(crate) fn now() -> Self {
        Pressure { since: Instant::now(), total_us: read() }
    }

    /// Share of the time since in which some thread waited for a CPU; none where the kernel
    /// does not say (`psi=0`).
    pub(crate) fn share(&self) -> Option<f64> {
        let stalled = Duration::from_micros(read()?.saturating_sub(self.total_us?));
        Some((stalled.as_secs_f64() / self.since.elapsed().as_secs_f64()).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_total_is_found() {
        let text =
            "some avg10=0.22 avg60=0.17 avg300=0.11 total=58761459\nfull avg10=0.00 total=7\n";
        assert_eq!(total(text), Some(58_761_459));
        assert_eq!(total("full total=7"), None);
        assert!(Pressure::now().share().is_none_or(|share| (0.0..=1.0).contains(&share)));
    }

    proptest! {
        #[test]
        fn any_text(text in "(some|full| |total=|[0-9]{1,30}|\n){0,20}") {
            let _ = total(&text);
        }
    }
}
