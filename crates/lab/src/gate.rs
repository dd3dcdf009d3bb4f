//! `--fail-if-slower PCT`: one rule, wherever it is asked.
//!
//! Two ratios are held against the limit: the typical run's and the mean's ([`vmeter_stats::decide`]). It fails
//! if the lower end of the interval of either is above the limit, passes if the upper end of neither is, and is
//! inconclusive in between: then nothing is known of the limit, in either direction, and neither answer would be
//! right. So a machine that is as fast fails with a chance of 2.5 % at most, both ratios together, and one whose
//! typical run or mean is slower by more than the limit passes with a chance of 2.5 % at most, if it shows its slow
//! runs at all.

use crate::session_variance::Found;
use vmeter_model::result::Comparison;
use vmeter_model::Estimate;

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
pub enum GateResult {
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
    pub ruling: GateResult,
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
        self.rule_both(name, &Ratio { ratio, ci95, alone: Some(ci95) }, None, (runs, None))
    }

    /// Rules on the typical run's ratio, and on the mean's where it says another thing: this one passes nothing by
    /// itself and fails nothing.
    pub(crate) fn rule_with_mean(
        &self,
        name: &str,
        typical: &Estimate,
        mean: Option<&Estimate>,
    ) -> Gate {
        let of =
            |estimate: &Estimate, alone| Ratio { ratio: estimate.mean, ci95: estimate.ci95, alone };
        let mean = mean.map(|mean| of(mean, None));
        self.rule_both(name, &of(typical, Some(typical.ci95)), mean.as_ref(), (typical.n, None))
    }

    /// Rules on the typical run and the mean, from so many runs of each machine, and what slow ones add.
    fn rule_both(
        &self,
        name: &str,
        typical: &Ratio,
        mean: Option<&Ratio>,
        (runs, tail): (usize, Option<&str>),
    ) -> Gate {
        let seen = seen(typical, mean, tail);
        self.decided(name, typical, mean, &seen).unwrap_or_else(|| {
            let more = match self.wanted(typical, mean, runs) {
                Some(wanted) => format!(
                    "about {wanted} runs of each machine would decide with 80 % power, if the true \
                        differences are the observed ones"
                ),
                None => "the difference is so close to the limit that no number of runs can \
                    decide"
                    .into(),
            };
            self.untold(name, &format!("{runs} runs of each machine"), &seen, &more)
        })
    }

    /// Rules on two sessions, whose interval is how far sessions of one machine lie apart: no number
    /// of their runs narrows it. `instead` says what would.
    pub(crate) fn rule_sessions(&self, name: &str, found: &Found, instead: &str) -> Gate {
        let typical = Ratio { ratio: found.ratio, ci95: found.ci95, alone: Some(found.ci95) };
        let mean = found.mean.map(|(ratio, ci95)| Ratio { ratio, ci95, alone: None });
        let seen = seen(&typical, mean.as_ref(), None);
        self.decided(name, &typical, mean.as_ref(), &seen).unwrap_or_else(|| {
            let why = format!(
                "any two sessions of one machine differ; two sessions do not show how large such \
                    differences usually are, even with more runs; {instead}"
            );
            self.untold(name, "two sessions", &seen, &why)
        })
    }

    /// What some runs cannot tell, and what would.
    fn untold(&self, name: &str, what: &str, seen: &str, more: &str) -> Gate {
        self.unknowable(&format!(
            "{what} cannot decide whether {name} is slower by more than {} %: {seen}; {more}",
            self.percent
        ))
    }

    /// The ruling, if an interval lies above the limit, or all below. NaN passes nothing.
    fn decided(
        &self,
        name: &str,
        typical: &Ratio,
        mean: Option<&Ratio>,
        seen: &str,
    ) -> Option<Gate> {
        let (limit, too_slow) = (self.percent, self.ratio());
        let mut both = std::iter::once(typical).chain(mean);
        let above = |side: &Ratio| side.alone.is_some_and(|[low, _]| low > too_slow);
        let (ruling, is) = if both.clone().any(above) {
            (GateResult::Failed, "is")
        } else if both.all(|side| side.ci95[1] <= too_slow) {
            (GateResult::Passed, "is not")
        } else {
            return None;
        };
        Some(Gate { ruling, text: format!("{name} {is} slower by more than {limit} %: {seen}") })
    }

    /// Rules on machines that were compared; of several the worst ruling counts.
    pub fn of_comparison(&self, comparison: &Comparison) -> Gate {
        if comparison.pairs < comparison.pairs_needed {
            let text = format!(
                "inconclusive: {} runs each of {} and {} are too few for any verdict; {} are \
                 enough",
                comparison.pairs, comparison.a, comparison.b, comparison.pairs_needed
            );
            return Gate { ruling: self.undecided(), text };
        }
        let of =
            |estimate: &Estimate, alone| Ratio { ratio: estimate.mean, ci95: estimate.ci95, alone };
        let typical = of(&comparison.ratio, Some(comparison.ratio.ci95));
        let mean = of(&comparison.mean_ratio, comparison.mean_alone);
        let runs = (comparison.pairs, comparison.tail.as_deref());
        self.rule_both(&comparison.b, &typical, Some(&mean).filter(|_| !comparison.exact), runs)
    }

    /// Nothing was compared: what is not measured is not known to be as fast.
    pub fn nothing(&self, why: &str) -> Gate {
        Gate { ruling: GateResult::Failed, text: format!("not compared: {why}") }
    }

    /// It cannot be known from what there is.
    pub fn unknowable(&self, why: &str) -> Gate {
        Gate { ruling: self.undecided(), text: format!("inconclusive: {why}") }
    }

    fn undecided(&self) -> GateResult {
        match self.inconclusive {
            None => GateResult::Inconclusive,
            Some(Inconclusive::Pass) => GateResult::Passed,
            Some(Inconclusive::Fail) => GateResult::Failed,
        }
    }

    /// How many runs would decide in four of five sessions, if the ratios are those that were seen: to fail, one
    /// of the two that lie above the limit; to pass, both.
    fn wanted(&self, typical: &Ratio, mean: Option<&Ratio>, runs: usize) -> Option<usize> {
        let limit = self.ratio();
        let of = |side: &Ratio, ci95| runs_wanted(limit, side.ratio, ci95, runs);
        let both = || std::iter::once(typical).chain(mean);
        let above = both().filter(|side| side.ratio > limit);
        let to_fail = above.filter_map(|side| of(side, side.alone.unwrap_or(side.ci95))).min();
        if both().any(|side| side.ratio > limit) {
            return to_fail;
        }
        let to_pass: Option<Vec<usize>> =
            both().filter(|side| side.ci95[1] > limit).map(|side| of(side, side.ci95)).collect();
        to_pass?.into_iter().max()
    }
}

/// The typical run's ratio or the mean's.
#[derive(Debug, Clone, Copy)]
struct Ratio {
    ratio: f64,
    /// By which it passes.
    ci95: [f64; 2],
    /// By which it fails; none where it does not by itself.
    alone: Option<[f64; 2]>,
}

/// Ratios in words.
fn seen(typical: &Ratio, mean: Option<&Ratio>, tail: Option<&str>) -> String {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let words = |side: &Ratio| {
        let [low, high] = side.ci95.map(percent);
        format!("{:+.1} % [{low:+.1}, {high:+.1}]", percent(side.ratio))
    };
    let tail = tail.map(|tail| format!("; {tail}")).unwrap_or_default();
    match mean {
        None => words(typical),
        Some(mean) => format!("typical run {}, mean {}{tail}", words(typical), words(mean)),
    }
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
        assert_eq!(ruling(1.08, [1.04, 1.12]), GateResult::Failed);
        assert_eq!(ruling(1.01, [0.99, 1.03]), GateResult::Passed);
        assert_eq!(ruling(1.04, [1.00, 1.08]), GateResult::Inconclusive);
        assert_eq!(ruling(1.0, [f64::NAN, f64::NAN]), GateResult::Inconclusive);
        assert!(
            GateResult::Failed > GateResult::Inconclusive
                && GateResult::Inconclusive > GateResult::Passed
        );
    }

    /// Sessions of 10, 100 and 400 runs were told that 120, 1150 and 5268 would decide.
    #[test]
    fn of_two_sessions_no_number_of_runs_is_said_to_decide() {
        let found = |ratio, ci95, mean| Found { ratio, ci95, mean, sessions: 6 };
        let gate = limit(None).rule_sessions(
            "b",
            &found(1.058, [0.992, 1.127], None),
            "both in turn would",
        );
        assert_eq!(gate.ruling, GateResult::Inconclusive);
        assert!(gate.text.ends_with("both in turn would"), "{}", gate.text);
        assert!(!gate.text.contains("about"), "{}", gate.text);
        for ci95 in [[1.04, 1.12], [0.99, 1.03]] {
            let sessions = limit(None).rule_sessions("b", &found(1.05, ci95, None), "");
            assert_eq!(sessions, limit(None).rule("b", 1.05, ci95, 10));
        }
        let mean = Some((1.1, [0.95, 1.3]));
        let slow = limit(None).rule_sessions("b", &found(1.0, [0.99, 1.02], mean), "");
        assert_eq!(slow.ruling, GateResult::Inconclusive);
    }

    #[test]
    fn an_inconclusive_gate_says_how_many_runs_would_decide() {
        let gate = limit(None).rule("b", 1.05, [1.01, 1.09], 10);
        assert!(gate.text.contains("about 81 runs of each machine would decide"), "{}", gate.text);
        let gate = limit(None).rule("b", 1.03, [0.9, 1.2], 10);
        assert!(gate.text.contains("so close to the limit"), "{}", gate.text);
        for (said, ruling) in
            [(Inconclusive::Pass, GateResult::Passed), (Inconclusive::Fail, GateResult::Failed)]
        {
            assert_eq!(limit(Some(said)).rule("b", 1.05, [1.01, 1.09], 10).ruling, ruling);
        }
    }
}
