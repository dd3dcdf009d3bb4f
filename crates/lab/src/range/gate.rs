//! `--fail-if-slower` of a range: no commit of it may have made it slower by more, nor a creep of several
//! together.

use crate::gate::{Gate, GateResult, Limit};
use vmeter_model::range::RangeResult;
use vmeter_model::{ChangeShape, CommitState, RangeVerdict};

/// What the gate says of the range; of several rulings the worst counts.
pub fn gates(result: &RangeResult, limit: &Limit) -> Vec<Gate> {
    let name = |at: usize| {
        let commit = result.record.commits.get(at);
        commit.map_or_else(String::new, |c| c.short().to_owned())
    };
    // A commit that does not run, or only seems to, was not found to be as fast.
    let silent = [CommitState::DoesNotRun, CommitState::NotCompared];
    let broken = result.commits.iter().filter(|c| silent.contains(&c.state));
    let mut gates: Vec<Gate> = broken
        .map(|commit| limit.nothing(&format!("{}: {}", name(commit.index), commit.state)))
        .collect();
    for change in &result.changes {
        let (Some(ratio), Some(last)) = (change.ratio, change.commits.last()) else { continue };
        if change.probability.is_some() && change.sizing.is_none() {
            let why = format!(
                "{}: vmeter found this change, but the new runs that measure the size of \
                 the change are missing: make these runs with --resume",
                name(*last)
            );
            gates.push(limit.unknowable(&why));
            continue;
        }
        let name = match change.shape {
            ChangeShape::Step => name(*last),
            ChangeShape::Tail => {
                format!(
                    "the mean boot time at {} and later commits (slow boots included)",
                    name(*last)
                )
            }
            ChangeShape::Creep => {
                format!("{} (compared with {}; a creep)", name(*last), name(change.before))
            }
            ChangeShape::Undecided => {
                format!(
                    "{} (compared with {}; vmeter does not know whether one commit or several \
                        made the change)",
                    name(*last),
                    name(change.before)
                )
            }
        };
        gates.push(limit.rule_with_mean(&name, &ratio, change.mean.as_ref()));
    }
    for change in &result.seen_once {
        let (Some(ratio), Some(last)) = (change.ratio, change.commits.last()) else { continue };
        let name = match (change.sizing, change.shape) {
            (Some(_), ChangeShape::Tail) => {
                format!(
                    "the mean boot at {} and later commits (new boots did not confirm that this \
                        commit changed the share of slow boots)",
                    name(*last)
                )
            }
            (Some(_), _) => format!("{} (new boots did not confirm this change)", name(*last)),
            (None, _) => format!("{} (compared with {})", name(*last), name(change.before)),
        };
        gates.push(limit.rule_with_mean(&name, &ratio, change.mean.as_ref()));
    }
    match result.verdict {
        RangeVerdict::Changed => {}
        RangeVerdict::NotMeasurable => {
            gates.push(limit.nothing("fewer than two commits can be measured"));
        }
        RangeVerdict::Undecided if result.seen_once.is_empty() => {
            gates.push(limit.unknowable("the range is undecided"));
        }
        RangeVerdict::Undecided | RangeVerdict::NoChange => gates.push(match result.excluded_pct {
            Some(most) if most <= limit.percent => Gate {
                ruling: GateResult::Passed,
                text: format!(
                    "no change was found, and the runs rule out a slowdown of more than {} %",
                    limit.percent
                ),
            },
            Some(most) => limit.unknowable(&format!(
                "no change was found, but a change of up to {most:.1} % is possible"
            )),
            None => limit.unknowable(
                "no change was found, and the runs give no upper bound for a \
                change",
            ),
        }),
    }
    gates
}
