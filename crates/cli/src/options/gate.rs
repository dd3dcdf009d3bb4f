//! `--fail-if-slower`, the same wherever it is asked.

use crate::status::Status;
use clap::Args;
use std::path::{Path, PathBuf};
use vmeter_lab::gate::{Gate, GateResult, Inconclusive, Limit};
use vmeter_model::run::AskedGate;
use vmeter_session::AnySession;

/// How much slower is too slow, and how vmeter then exits.
#[derive(Debug, Clone, Copy, Args)]
pub struct FailIfSlower {
    /// Let the measured slowdown decide the exit status (default: the slowdown does not change
    /// the exit status). vmeter judges two figures: the typical run and the mean. Status 1: the
    /// typical run or the mean is more than PCT percent slower (the lower end of its interval is
    /// above PCT).
    /// Status 0: neither is (the upper ends of both intervals are at most PCT). Status 4:
    /// inconclusive.
    #[arg(long, value_name = "PCT", value_parser = super::percent)]
    pub fail_if_slower: Option<f64>,
    /// Exit status of vmeter if --fail-if-slower is inconclusive: 0 for pass, 1 for fail (default:
    /// 4).
    #[arg(long, value_name = "WHAT", requires = "fail_if_slower",
          value_parser = super::word::<Inconclusive>())]
    pub inconclusive: Option<Inconclusive>,
}

impl FailIfSlower {
    /// The limit, if one was given.
    pub fn limit(self) -> Option<Limit> {
        let inconclusive = self.inconclusive;
        self.fail_if_slower.map(|percent| Limit { percent, inconclusive })
    }

    /// The limit in the form that a session saves, with the baseline of the comparison.
    pub fn kept(self, baseline: Option<&Path>) -> AskedGate {
        AskedGate {
            fail_if_slower: self.fail_if_slower,
            inconclusive: self.inconclusive.map(|word| word.word().to_owned()),
            baseline: baseline
                .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into())),
        }
    }
}

/// The gate that the user set when the session began. It applies to all runs of the session.
pub struct SavedGate(AskedGate);

impl SavedGate {
    /// Reads the gate of the session in the folder `resume`. Without a session there is no gate.
    pub fn of(resume: Option<&Path>) -> SavedGate {
        let record = resume.and_then(|dir| AnySession::open(dir).ok()).map(|s| s.record);
        SavedGate(record.and_then(|record| record.gate).unwrap_or_default())
    }

    /// The limit: the one that the user gives now, else the saved one.
    pub fn limit(&self, asked: FailIfSlower) -> Option<Limit> {
        let inconclusive = || self.0.inconclusive.as_deref().and_then(|word| word.parse().ok());
        let then = |percent| Limit { percent, inconclusive: inconclusive() };
        asked.limit().or_else(|| self.0.fail_if_slower.map(then))
    }

    /// The saved baseline.
    pub fn baseline(&self) -> Option<PathBuf> {
        self.0.baseline.clone()
    }
}

/// The exit status of a command that ended with `status` and has these gates: the worst result
/// counts. Prints the result of each gate on standard error.
pub fn ruled(status: Status, gates: &[Gate]) -> Status {
    for gate in gates {
        eprintln!("vmeter: gate: {}", vmeter_render::text::neutralise(&gate.text));
    }
    let worst = gates.iter().map(|gate| gate.ruling).max();
    match (status, worst) {
        (Status::Bad, _) | (_, Some(GateResult::Failed)) => Status::Bad,
        (_, Some(GateResult::Inconclusive)) => Status::Inconclusive,
        (status, _) => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_kept() {
        let nothing = FailIfSlower { fail_if_slower: None, inconclusive: None };
        let four = FailIfSlower { fail_if_slower: Some(4.0), inconclusive: None };
        let two = FailIfSlower { fail_if_slower: Some(2.0), ..four };
        let none = SavedGate(AskedGate::default());
        assert!(none.limit(nothing).is_none() && none.baseline().is_none());
        assert_eq!(none.limit(four).map(|l| l.percent), Some(4.0));
        let kept = SavedGate(four.kept(Some(Path::new("/b"))));
        assert_eq!(kept.limit(nothing).map(|l| (l.percent, l.inconclusive)), Some((4.0, None)));
        assert_eq!(kept.limit(two).map(|l| l.percent), Some(2.0));
        assert_eq!(kept.baseline(), Some("/b".into()));
    }
}
