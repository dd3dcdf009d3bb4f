//! `--fail-if-slower PCT`: one rule, wherever it is asked.
//!
//! It fails if the lower end of the ratio's 95 % interval is above the limit, passes if the
//! upper end is not above it, and is inconclusive in between: then nothing is known of the limit,
//! in either direction, and neither answer would be right. So a machine that is as fast fails
//! with a chance of 2.5 % at most, and one that is slower by more than the limit passes with a
//! chance of 2.5 % at most.

use vmeter_model::result::Comparison;
use vmeter_model::Verdict;

/// More runs than this are not worth naming.
const MOST_RUNS: f64 = 100_000.0;
/// The distance to a limit that an interval leaves free in four of five sessions, in halves of
/// its width: (1.960 + 0.842) / 1.960. One half is left free in every second.
const FOUR_OF_FIVE: f64 = 1.43;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Slower by more than this, %, is too slow.
    pub percent: f64,
    /// What "inconclusive" comes to, if the user says so.
    pub inconclusive: Option<Inconclusive>,
}

vmeter_base::words! {
    /// What a gate that could not decide comes to.
    pub enum Inconclusive {
        /// Exit status 0.
        Pass = "pass",
        /// Exit status 1.
        Fail = "fail",
    }
}

/// What a gate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ruling {
    /// It is not slower by more than the limit.
    Passed,
    /// These runs cannot tell.
    Inconclusive,
    /// It is slower by more than the limit, or was not measured.
    Failed,
}

/// A ruling and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// The ruling.
    pub ruling: Ruling,
    /// In words.
    pub text: String,
}

impl Limit {
    /// The ratio at which it is too slow.
    fn ratio(&self) -> f64 {
        1.0 + self.percent / 100.0
    }

    /// Rules on a ratio with its 95 % interval, from so many `runs`.
    pub fn rule(&self, name: &str, ratio: f64, ci95: [f64; 2], runs: usize) -> Gate {
        self.decided(name, ratio, ci95).unwrap_or_else(|| {
            let more = self.more(ratio, ci95, runs);
            self.untold(name, &format!("these {runs} runs"), seen(ratio, ci95), &more)
        })
    }

    /// Rules on two sessions, whose interval is how far sessions of one machine lie apart: no number
    /// of their runs narrows it. `instead` says what would.
    pub fn rule_sessions(&self, name: &str, ratio: f64, ci95: [f64; 2], instead: &str) -> Gate {
        self.decided(name, ratio, ci95).unwrap_or_else(|| {
            let why = format!(
                "that is how far sessions of one machine lie apart, and more runs of them decide \
                 nothing: {instead}"
            );
            self.untold(name, "two sessions", seen(ratio, ci95), &why)
        })
    }

    /// What some runs cannot tell, and what would.
    fn untold(&self, name: &str, what: &str, seen: String, more: &str) -> Gate {
        self.unknowable(&format!(
            "whether {name} is slower by more than {} % {what} cannot tell: {seen}; {more}",
            self.percent
        ))
    }

    /// The ruling, if the interval lies on one side of the limit. NaN passes nothing.
    fn decided(&self, name: &str, ratio: f64, ci95: [f64; 2]) -> Option<Gate> {
        let limit = self.percent;
        let (ruling, is) = match ci95 {
            [low, _] if low > self.ratio() => (Ruling::Failed, "is"),
            [_, high] if high <= self.ratio() => (Ruling::Passed, "is not"),
            _ => return None,
        };
        let seen = seen(ratio, ci95);
        Some(Gate { ruling, text: format!("{name} {is} slower by more than {limit} %: {seen}") })
    }

    /// Rules on machines that were compared; of several the worst ruling counts.
    pub fn of_comparison(&self, comparison: &Comparison) -> Gate {
        if comparison.verdict == Verdict::Undecidable {
            let text = format!(
                "inconclusive: {} pairs of runs of {} and {} cannot decide anything; {} would",
                comparison.pairs, comparison.a, comparison.b, comparison.pairs_needed
            );
            return Gate { ruling: self.undecided(), text };
        }
        let ratio = &comparison.ratio;
        self.rule(&comparison.b, ratio.mean, ratio.ci95, comparison.pairs)
    }

    /// Nothing was compared: what is not measured is not known to be as fast.
    pub fn nothing(&self, why: &str) -> Gate {
        Gate { ruling: Ruling::Failed, text: format!("not compared: {why}") }
    }

    /// It cannot be known from what there is.
    pub fn unknowable(&self, why: &str) -> Gate {
        Gate { ruling: self.undecided(), text: format!("inconclusive: {why}") }
    }

    fn undecided(&self) -> Ruling {
        match self.inconclusive {
            None => Ruling::Inconclusive,
            Some(Inconclusive::Pass) => Ruling::Passed,
            Some(Inconclusive::Fail) => Ruling::Failed,
        }
    }

    /// How many runs would decide in four of five sessions, if the ratio is the one that was seen.
    fn more(&self, ratio: f64, [low, high]: [f64; 2], runs: usize) -> String {
        match runs_wanted(self.ratio(), ratio, [low, high], runs) {
            Some(wanted) => {
                format!("about {wanted} would decide (4 times of 5), if it is as it looks")
            }
            None => "it lies too near the limit for any number of runs".into(),
        }
    }
}

/// A ratio in words.
fn seen(ratio: f64, [low, high]: [f64; 2]) -> String {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    format!(
        "{:+.1} %, 95 % interval {:+.1} to {:+.1} %",
        percent(ratio),
        percent(low),
        percent(high)
    )
}

/// How many runs decide in four of five sessions on which side of `limit` a ratio lies, if it is the one
/// that was seen with this interval of so many `runs`; none where no number worth naming does.
pub(crate) fn runs_wanted(
    limit: f64,
    ratio: f64,
    [low, high]: [f64; 2],
    runs: usize,
) -> Option<usize> {
    let half = (high.ln() - low.ln()) / 2.0;
    let distance = (ratio.ln() - limit.ln()).abs();
    let wanted = (runs as f64 * (FOUR_OF_FIVE * half / distance).powi(2)).ceil();
    (wanted.is_finite() && wanted < MOST_RUNS).then(|| (wanted as usize).max(runs + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(inconclusive: Option<Inconclusive>) -> Limit {
        Limit { percent: 3.0, inconclusive }
    }

    /// Review E7: three commands had two rules, of which one failed by the point estimate.
    #[test]
    fn three_answers() {
        let ruling = |ratio, ci95| limit(None).rule("b", ratio, ci95, 10).ruling;
        assert_eq!(ruling(1.08, [1.04, 1.12]), Ruling::Failed);
        assert_eq!(ruling(1.01, [0.99, 1.03]), Ruling::Passed);
        assert_eq!(ruling(1.04, [1.00, 1.08]), Ruling::Inconclusive);
        assert_eq!(ruling(1.0, [f64::NAN, f64::NAN]), Ruling::Inconclusive);
        assert!(Ruling::Failed > Ruling::Inconclusive && Ruling::Inconclusive > Ruling::Passed);
    }

    /// Sessions of 10, 100 and 400 runs were told that 120, 1150 and 5268 would decide.
    #[test]
    fn of_two_sessions_no_number_of_runs_is_said_to_decide() {
        let gate = limit(None).rule_sessions("b", 1.058, [0.992, 1.127], "both in turn would");
        assert_eq!(gate.ruling, Ruling::Inconclusive);
        assert!(gate.text.ends_with("both in turn would"), "{}", gate.text);
        assert!(!gate.text.contains("about"), "{}", gate.text);
        for ci95 in [[1.04, 1.12], [0.99, 1.03]] {
            let sessions = limit(None).rule_sessions("b", 1.05, ci95, "");
            assert_eq!(sessions, limit(None).rule("b", 1.05, ci95, 10));
        }
    }

    #[test]
    fn an_inconclusive_gate_says_how_many_runs_would_decide() {
        let gate = limit(None).rule("b", 1.05, [1.01, 1.09], 10);
        assert!(gate.text.contains("about 81 would decide"), "{}", gate.text);
        let gate = limit(None).rule("b", 1.03, [0.9, 1.2], 10);
        assert!(gate.text.contains("too near the limit"), "{}", gate.text);
        for (said, ruling) in
            [(Inconclusive::Pass, Ruling::Passed), (Inconclusive::Fail, Ruling::Failed)]
        {
            assert_eq!(limit(Some(said)).rule("b", 1.05, [1.01, 1.09], 10).ruling, ruling);
        }
    }
}
