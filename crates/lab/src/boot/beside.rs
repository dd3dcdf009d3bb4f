//! The baseline's machine and this boot's, whose runs took turns in one session.

use super::config::Config;
use crate::blocks::{blocks, ByBlock};
use crate::compare::{against_the_first, Sampled};
use crate::ends::Ends;
use crate::figures::Figures;
use vmeter_model::result::Comparison;
use vmeter_model::run::Outcome;
use vmeter_model::time::seconds;
use vmeter_session::{SavedRun, Session};

/// This boot's machine against the baseline's that took turns with it, if one did.
pub(super) fn beside(
    session: &Session,
    finished: &[SavedRun],
) -> Option<Result<Comparison, String>> {
    let machines = sides(session, finished)?;
    let rule = session.asked::<Config>().unwrap_or_default().repeats.rule();
    let mut found = against_the_first(&machines, rule);
    if let Some(refused) = found.refused.pop() {
        return Some(Err(refused.why));
    }
    found.comparisons.pop().map(Ok)
}

/// The baseline's machine and this boot's, that take turns, if they do.
pub(super) fn sides(session: &Session, finished: &[SavedRun]) -> Option<[Sampled<'static>; 2]> {
    let record = &session.record;
    let [own, other] = record.machines.as_slice() else { return None };
    if crate::at_once::is_spread(own) {
        return None;
    }
    let blocks = blocks(&record.plan);
    let sampled = |label: &'static str, of: &str| {
        let runs = || finished.iter().filter(|(_, r)| !r.warmup && r.label == of);
        let done = || runs().filter(|(_, r)| r.outcome == Outcome::Done);
        let samples = |value: fn(&SavedRun) -> f64| -> ByBlock {
            done().filter_map(|run| Some((*blocks.get(&run.1.index)?, value(run)))).collect()
        };
        Sampled {
            label,
            wall: samples(total_s),
            cpu: samples(|(_, r)| r.usage.cpu_s()),
            ends: Ends::of_records(runs().map(|(_, r)| r)),
            exact: done().count() > 0 && done().all(|(_, r)| r.icount),
        }
    };
    Some([sampled("the baseline", &other.label), sampled("this boot", &own.label)])
}

/// How long a run took, s: in its own time, if that is virtual.
fn total_s((dir, run): &SavedRun) -> f64 {
    if run.icount {
        return Figures::of(&crate::analysis::analyse_run(dir, run.clone())).run.total_s;
    }
    seconds(run.total_ns)
}
