//! How many signals to a VMM's threads are worth the stops that they make.
//!
//! A thread that is traced is stopped by each signal that it is sent, some 0.1 ms and on a busy
//! host more. Most VMMs send their vCPUs none while the guest runs; one that kicks them would
//! be slowed down by more than watching may cost.

use vmeter_model::Ns;

/// Signals at once, as when a VMM pauses or ends its vCPUs.
const BURST: i64 = 64;
/// Signals a second from then on: some 0.2 % of the time.
const PER_SECOND: i64 = 20;

/// What is left of it.
#[derive(Debug, Default)]
pub struct SignalBudget {
    first: Option<Ns>,
    signals: i64,
    over: bool,
}

impl SignalBudget {
    /// A thread was stopped by a signal at this time; true from the one on that was too many.
    pub fn is_over(&mut self, at: Ns) -> bool {
        let first = *self.first.get_or_insert(at);
        self.signals = self.signals.saturating_add(1);
        let seconds = at.saturating_sub(first).max(0) / 1_000_000_000;
        self.over |= self.signals > BURST.saturating_add(seconds.saturating_mul(PER_SECOND));
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(signals: i64, every_ns: Ns) -> bool {
        let mut patience = SignalBudget::default();
        (0..signals).map(|n| patience.is_over(i64::MAX / 2 + n * every_ns)).last() == Some(true)
    }

    #[test]
    fn a_few_are_borne_and_a_row_of_them_is_not() {
        assert!(!of(64, 0) && of(65, 0));
        assert!(!of(10_000, 50_000_000) && of(10_000, 10_000_000));
        let mut patience = SignalBudget { over: true, ..SignalBudget::default() };
        assert!(patience.is_over(0) && patience.is_over(Ns::MAX), "for good");
        assert!(!SignalBudget::default().is_over(Ns::MIN));
    }
}
