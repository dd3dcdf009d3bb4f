//! Whether others wanted the CPUs meanwhile.
//!
//! Figures of half a millisecond are other programs' as soon as one of them runs, and no
//! statistics tells that from a cost. The kernel's pressure stall information does: for how
//! long some thread could run and had no CPU (Documentation/accounting/psi.rst).

use crate::data::{ns, Stalled};
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

    /// The time since, and for how much of it some thread waited for a CPU; none where the
    /// kernel does not say (`psi=0`).
    pub(crate) fn stalled(&self) -> Option<Stalled> {
        let stalled = Duration::from_micros(read()?.saturating_sub(self.total_us?));
        Some(Stalled { stalled_ns: ns(stalled), watched_ns: ns(self.since.elapsed()) })
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
        assert!(Pressure::now().stalled().is_none_or(|stalled| stalled.watched_ns > 0));
    }

    proptest! {
        #[test]
        fn any_text(text in "(some|full| |total=|[0-9]{1,30}|\n){0,20}") {
            let _ = total(&text);
        }
    }
}
