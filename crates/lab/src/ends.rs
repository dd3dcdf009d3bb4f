//! How runs ended, and whether their times can be compared.
//!
//! A machine that crashes is over soon. So times of machines are only compared if all of
//! their measured runs ended as they should, and in the same way: a gate that compares
//! nothing does not pass.

use crate::phrases::ended_text;
use std::collections::BTreeSet;
use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::sweep::SweptRun;
use vmeter_model::End;

/// The ends of a machine's measured runs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The first run that did not end as it should, in words.
    failed: Option<String>,
    /// What the others were measured to; empty if no run says so.
    to: BTreeSet<String>,
    /// What ended those that did not end as they should.
    bad: BTreeSet<String>,
    /// True if no run ended as it should.
    never: bool,
}

/// How to learn what a guest did.
pub(crate) const TO_LEARN_IT: &str =
    "only that the VMM exited with status 0; to measure up to a line that the guest prints, use \
        --until 'line:REGEX'";

impl Ends {
    /// The ends of runs: number, outcome, and what ended each.
    pub(crate) fn of<'a>(runs: impl Iterator<Item = (u32, &'a Outcome, Option<&'a End>)>) -> Ends {
        let mut ends = Ends { never: true, ..Ends::default() };
        for (index, outcome, end) in runs {
            match ended_text(outcome, end) {
                None => {
                    ends.never = false;
                    ends.to.extend(end.map(End::measured_to));
                }
                Some(text) => {
                    ends.bad.extend(end.map(End::measured_to));
                    ends.failed.get_or_insert_with(|| format!("run {index}: {text}"));
                }
            }
        }
        ends
    }

    /// The ends of saved runs.
    pub(crate) fn of_records<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Ends {
        Ends::of(runs.map(|run| (run.index, &run.outcome, run.end.as_ref())))
    }

    /// The ends of a point's runs.
    pub(crate) fn of_swept<'a>(runs: impl Iterator<Item = &'a SweptRun>) -> Ends {
        Ends::of(runs.map(|run| (run.index, &run.outcome, run.end.as_ref())))
    }

    /// Why times of `a` and `b` can't be compared, if so.
    pub(crate) fn differ(a: (&str, &Ends), b: (&str, &Ends)) -> Option<String> {
        for (name, ends) in [b, a] {
            if let Some(failed) = &ends.failed {
                return Some(format!("{name}, {failed}"));
            }
        }
        if a.1.is_unknown() && b.1.is_unknown() {
            return Some(format!(
                "vmeter does not know how the guests of the two machines ended, \
                {TO_LEARN_IT}"
            ));
        }
        for (name, ends) in [b, a] {
            if ends.is_unknown() {
                return Some(format!(
                    "vmeter does not know how the guest of {name} ended, \
                    {TO_LEARN_IT}"
                ));
            }
        }
        let words = |ends: &Ends| ends.to.iter().cloned().collect::<Vec<_>>().join(" or ");
        let known = !a.1.to.is_empty() && !b.1.to.is_empty();
        (known && a.1.to != b.1.to).then(|| {
            format!(
                "vmeter measured {} up to its {}, and measured {} up to its {}: to make the \
                    times comparable, give both the same ready point with --until",
                a.0,
                words(a.1),
                b.0,
                words(b.1)
            )
        })
    }

    /// As [`Ends::differ`], where failed runs are left out, or looked at beside each other if
    /// there are no others.
    pub(crate) fn unlike(a: (&str, &Ends), b: (&str, &Ends)) -> Option<String> {
        match (a.1.never, b.1.never) {
            (true, true) => {
                let known = !a.1.bad.is_empty() && !b.1.bad.is_empty();
                let both =
                    || [a, b].map(|(name, ends)| Some(format!("{name}, {}", ends.failed()?)));
                (known && a.1.bad != b.1.bad)
                    .then(|| both().into_iter().flatten().collect::<Vec<_>>().join("; "))
            }
            (false, false) if a.1.is_unknown() && b.1.is_unknown() => None,
            (false, false) => {
                let done = |ends: &Ends| Ends { failed: None, ..ends.clone() };
                Ends::differ((a.0, &done(a.1)), (b.0, &done(b.1)))
            }
            _ => Ends::differ(a, b),
        }
    }

    /// The first run that did not end as it should, in words.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// True if a run ended with its VMM's exit, and nothing says what the guest did.
    pub(crate) fn is_unknown(&self) -> bool {
        self.to.contains(vmeter_model::end::VMM_EXIT)
    }

    /// What its runs were measured to, in words, if one says so.
    pub(crate) fn to(&self) -> &BTreeSet<String> {
        &self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Cause;

    fn ends(runs: &[(Outcome, Option<Cause>)]) -> Ends {
        let known: Vec<(Outcome, Option<End>)> =
            runs.iter().map(|(o, c)| (o.clone(), c.map(|c| End::new(c, "e")))).collect();
        Ends::of(known.iter().enumerate().map(|(n, (o, e))| (n as u32, o, e.as_ref())))
    }

    #[test]
    fn only_runs_that_ended_alike_are_compared() {
        let done = |cause| ends(&[(Outcome::Done, Some(cause))]);
        let differ = |a: &Ends, b: &Ends| Ends::differ(("a", a), ("b", b));
        let off = done(Cause::PowerOff);
        assert_eq!(differ(&off, &done(Cause::Restart)), None, "a shutdown either way");
        assert!(differ(&off, &done(Cause::Ready)).is_some_and(|why| why.contains("--until")));
        let unknown = done(Cause::Exit);
        for (a, b, says) in [
            (&off, &unknown, "does not know how the guest of"),
            (&unknown, &off, "does not know how the guest of"),
            (&unknown, &unknown, "vmeter does not know how the guests"),
        ] {
            let why = differ(a, b).expect("a guest of which nothing is known");
            assert!(why.contains(says) && why.contains("--until"), "{why}");
        }
        let crash = (Outcome::UnexpectedEnd { how: "crashed".into() }, Some(Cause::TripleFault));
        let sometimes = ends(&[(Outcome::Done, Some(Cause::PowerOff)), crash.clone()]);
        assert_eq!(differ(&off, &sometimes), Some("b, run 1: crashed (e)".into()));
        assert_eq!(differ(&sometimes, &off), Some("a, run 1: crashed (e)".into()));
        let always = ends(&[crash]);
        assert!(Ends::unlike(("a", &always), ("b", &always)).is_none());
        assert!(Ends::unlike(("a", &always), ("b", &off)).is_some());
        let restart = (Outcome::UnexpectedEnd { how: "restarted".into() }, Some(Cause::Restart));
        let why = Ends::unlike(("a", &ends(&[restart])), ("b", &always)).expect("two bad ends");
        assert_eq!(why, "a, run 0: restarted (e); b, run 0: crashed (e)");
    }
}
