//! A round of the race: the machine with all candidates, and all but some of them, in turn.

use super::booted::Pairs;
use super::config::{candidate, Group};
use vmeter_render::quantity::compact_seconds;
use vmeter_stats::race::{Standing as Raced, LOOKS};
use vmeter_stats::{estimate_signed, Race};

/// A round on its way.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// Its number.
    pub number: usize,
    /// How often the machine with all boots in each block.
    pub replicas: usize,
    race: Race,
    entries: Vec<Entry>,
}

/// What is left out, and the boots without and with it, s.
#[derive(Debug, Clone)]
struct Entry {
    group: Group,
    pairs: Pairs,
    failed: Option<String>,
}

/// What comes of a round.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// Candidates that are taken, and why.
    pub taken: Vec<(String, String)>,
    /// Candidates that are not.
    pub left: Vec<(String, String)>,
    /// What is to be left out next.
    pub waiting: Vec<Vec<String>>,
}

impl Round {
    /// One without boots.
    pub fn new(number: usize, replicas: usize, race: Race) -> Self {
        Round { number, replicas, race, entries: Vec::new() }
    }

    /// Adds the boots of a look.
    pub fn add(&mut self, group: &Group, pairs: Pairs, failed: Option<String>) {
        let known = self.entries.iter().position(|entry| entry.group == *group);
        let at = known.unwrap_or_else(|| {
            let entry = Entry { group: group.clone(), pairs: Pairs::default(), failed: None };
            self.entries.push(entry);
            self.entries.len() - 1
        });
        self.entries[at].pairs.extend(pairs);
        self.entries[at].failed = self.entries[at].failed.take().or(failed);
    }

    /// What is still open, and how many more blocks its next look takes.
    pub fn open(&self) -> (Vec<Group>, usize) {
        let mut more = usize::MAX;
        let mut open = Vec::new();
        for entry in &self.entries {
            if let (Raced::Open { next_look }, None) = (entry.pairs.say(self.race), &entry.failed) {
                more = more.min(next_look - entry.pairs.wall.len());
                open.push(entry.group.clone());
            }
        }
        (open, more)
    }

    /// Ends it, with what is known by now.
    pub fn close(&self) -> Closed {
        let mut closed = Closed::default();
        let mut out: Vec<(&Entry, f64, String)> = Vec::new();
        for entry in &self.entries {
            let found = estimate_signed(&entry.pairs.saved());
            let [least, most] = found.ci95.map(compact_seconds);
            let ids = &entry.group.ids;
            let said = match (&entry.failed, entry.pairs.say(self.race)) {
                (Some(why), _) => Err(format!(
                    "with only the other steps, the \
                    machine does not boot: {why}"
                )),
                (None, Raced::Helps) => {
                    Err(format!("it saves {}, beyond noise", compact_seconds(found.mean)))
                }
                (None, Raced::Open { .. }) if entry.pairs.wall.len() < LOOKS[0] => {
                    Err("the budget left no time to measure it alone".to_owned())
                }
                (None, Raced::NotWorth) => Ok(format!(
                    "this step saves {least} to {most} in addition to the other steps: the gain is \
                        below --worth"
                )),
                (None, Raced::Open { .. }) if entry.pairs.leans() => Err(format!(
                    "when the budget for the search ended, this step seemed to save {}; vmeter \
                        therefore kept it in the machine for the last measurement",
                    compact_seconds(found.mean)
                )),
                (None, Raced::Open { .. }) => Ok(format!(
                    "the budget ended before the gain was proven; vmeter estimates that this \
                        step saves {least} to {most} in addition to the other steps"
                )),
                (None, Raced::Unproven) => {
                    Ok(format!("gain not proven: {least} to {most} in addition to the other steps"))
                }
            };
            match said {
                Err(why) if ids.len() == 1 => closed.taken.push((ids[0].clone(), why)),
                Err(_) if entry.pairs.wall.len() < LOOKS[0] => {
                    closed.taken.extend(
                        ids.iter().map(|id| (id.clone(), "not measured by itself".to_owned())),
                    );
                }
                // A group that helps is taken apart.
                Err(_) => closed.waiting.extend(ids.iter().map(|id| vec![id.clone()])),
                Ok(why) => out.push((entry, found.mean, why)),
            }
        }
        leave(out, &mut closed);
        closed
    }
}

/// Leaves candidates out, the least first. Of two that may save the same time only one goes: without it
/// the other may save something.
fn leave(mut out: Vec<(&Entry, f64, String)>, closed: &mut Closed) {
    out.sort_by(|a, b| a.1.total_cmp(&b.1));
    for (entry, _, why) in out {
        let rivals = |id: &String| {
            closed.left.iter().any(|(other, _)| {
                candidate(id).zip(candidate(other)).is_some_and(|(a, b)| a.rivals(&b))
            })
        };
        if entry.group.ids.iter().any(rivals) {
            closed.waiting.push(entry.group.ids.clone());
            continue;
        }
        let why = match entry.group.ids.len() {
            1 => why,
            n => format!("{why} (with {} others)", n - 1),
        };
        closed.left.extend(entry.group.ids.iter().map(|id| (id.clone(), why.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(ids: &[&str]) -> Group {
        Group { ids: ids.iter().map(|id| (*id).to_owned()).collect(), label: ids.join("+") }
    }

    fn pairs(wall: &[(f64, f64)]) -> Pairs {
        Pairs { wall: wall.to_vec(), ..Pairs::default() }
    }

    #[test]
    fn of_two_that_save_the_same_time_one_goes_first() {
        let race = Race { alpha: 0.05, comparisons: 3, worth: 1.01 };
        let mut round = Round::new(1, 1, race);
        round.add(&group(&["i8042-probe"]), pairs(&[(1.0, 1.0); 5]), None);
        round.add(&group(&["i8042-device"]), pairs(&[(0.999, 1.0); 5]), None);
        round.add(&group(&["crypto-tests"]), pairs(&[(1.5, 1.0); 5]), None);
        assert!(round.open().0.is_empty());
        let closed = round.close();
        assert_eq!(closed.taken[0].0, "crypto-tests");
        assert_eq!(closed.left.iter().map(|l| l.0.as_str()).collect::<Vec<_>>(), ["i8042-device"]);
        assert_eq!(closed.waiting, [["i8042-probe"]]);
    }

    #[test]
    fn a_group_that_helps_is_taken_apart_and_what_is_open_goes_on() {
        let race = Race { alpha: 0.05, comparisons: 2, worth: 1.01 };
        let mut round = Round::new(1, 1, race);
        round.add(&group(&["psi", "edd"]), pairs(&[(1.5, 1.0); 5]), None);
        round.add(
            &group(&["ipv6"]),
            pairs(&[(1.5, 1.0), (0.7, 1.0), (1.1, 1.0), (1.2, 1.0), (0.9, 1.0)]),
            None,
        );
        assert_eq!(round.open(), (vec![group(&["ipv6"])], 3));
        assert_eq!(round.close().waiting, [["psi"], ["edd"]]);
        assert!(round.close().left[0].1.contains("the budget ended"));
    }
}
