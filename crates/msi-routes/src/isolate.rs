// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A table that KVM refuses for one message: the others of the batch are committed without
//! it, and it is named. Fixed routes are among the candidates, whatever they are.
//!
//! A guest writes messages, and KVM refuses some (`EINVAL`), with the table that they are in.
//! Which one it was is found by halves: a table with the first k messages of the batch is
//! refused from some k on, and that one is bad. What KVM is known to refuse comes last and
//! is tried last, so that the usual case takes two or three calls; before it what is unlike the
//! others (of another address or delivery mode), rarest last.
//!
//! Each call answers yes or no, and one that was refused must be followed by one without the
//! bad message, which only those do not cost that find it by being accepted without it. So k
//! calls after the first tell one bad message of at most 2^(k-1), however they are chosen:
//! with R(k) candidates left after a refusal and A(k) after a table without any of them was
//! taken, the next call splits either into one of each, so both are R(k-1) + A(k-1), with
//! R(0) = 0 and A(0) = 1. Of 520 no search can do with 11 calls what it can of 512. Sixteen
//! candidates cost a twelfth, no fewer can: 504 leaves at the eleventh level leave room for
//! 16 below. The parts are cut so that those are the few that come first, which are most
//! like the others.

use crate::commit::Commit;
use crate::foreign::Errno;
use crate::message::MsiMessage;
use crate::report::Step;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Calls of `KVM_SET_GSI_ROUTING` that one commit makes at most to find bad messages: those
/// that it has not told apart by then fail together.
const MOST_CALLS: usize = 48;

/// What brings messages into the table: a batch, or the routes that are promoted.
pub(crate) trait Bringer {
    /// Puts the candidates into the table that are taken, and have not failed; beside what
    /// nobody asks about. False if the kernel has it so already.
    fn edit(&mut self, taken: &[bool]) -> bool;

    /// Hands the table to the kernel. What is refused is rolled back.
    fn offer(&mut self) -> Result<(), Errno>;

    /// A candidate fails.
    fn blame(&mut self, candidate: usize, why: Errno);
}

/// What KVM may have refused a table for.
pub(crate) struct Candidate {
    /// Its number, by which the [`Bringer`] knows it.
    pub(crate) at: usize,
    /// As the table gets it; none of a route that is no message.
    pub(crate) message: Option<MsiMessage>,
}

/// The candidates, in the order in which they are tried.
struct Search {
    /// Those that are good among them first.
    order: Vec<usize>,
    /// Room for each candidate's number.
    numbers: usize,
    /// So many of them are in the kernel's table, or known to be bad.
    done: usize,
    calls: usize,
    /// The kernel has a table of this commit.
    any: bool,
    /// Why it refused the last one.
    error: Errno,
}

/// What messages have in common but for a vector and a destination (Intel SDM vol. 3, 11.11).
type Kind = Option<(u64, u32, bool)>;

fn kind(message: &Option<MsiMessage>) -> Kind {
    let kind = |m: &MsiMessage| (m.address & !0xf_f000, m.data & !0xff, m.devid.is_some());
    message.as_ref().map(kind)
}

/// How many of `count` candidates are tried first. The others are a power of two, so that what
/// does not fit into one is left for the first; and these are few enough for the call saved.
fn first_part(count: usize) -> usize {
    let (below, above) = (1 << count.ilog2(), count.next_power_of_two());
    (count - below / 2).min(above / 2).max(1)
}

/// The kernel refused the table with `first`, and it is rolled back. Hands it one without what
/// it refuses; such candidates are blamed. An error if it takes none at all.
pub(crate) fn isolate(
    bringer: &mut impl Bringer,
    mut candidates: Vec<Candidate>,
    first: Errno,
) -> Result<(), Errno> {
    let len = candidates.len();
    if first.errno() != libc::EINVAL || len == 0 {
        return Err(first);
    }
    let mut alike: HashMap<Kind, usize> = HashMap::new();
    for candidate in &candidates {
        *alike.entry(kind(&candidate.message)).or_default() += 1;
    }
    let suspect = |c: &Candidate| c.message.is_some_and(|message| message.is_suspect());
    candidates.sort_by_cached_key(|candidate| {
        (suspect(candidate), Reverse(alike.get(&kind(&candidate.message)).copied()))
    });
    let good = candidates.iter().filter(|candidate| !suspect(candidate)).count();
    let order: Vec<usize> = candidates.into_iter().map(|candidate| candidate.at).collect();
    let numbers = order.iter().max().map_or(0, |at| at + 1);
    let mut search = Search { order, numbers, done: 0, calls: 0, any: false, error: first };
    if good < len && search.offer(bringer, good)? {
        search.done = good;
        if search.done + 1 == len {
            search.blame(bringer);
        }
    }
    while search.done < len {
        if !search.narrow(bringer)? {
            break;
        }
    }
    // All of them failed: the table without any.
    if search.any || search.offer(bringer, len)? {
        Ok(())
    } else {
        Err(first)
    }
}

impl Search {
    /// Finds the next bad one; everything else up to it is committed. False if the calls are
    /// used up: then all that is left has failed.
    fn narrow(&mut self, bringer: &mut impl Bringer) -> Result<bool, Errno> {
        let mut refused = self.order.len();
        while refused - self.done > 1 {
            if self.calls >= MOST_CALLS {
                while self.done < self.order.len() {
                    self.blame(bringer);
                }
                return Ok(false);
            }
            let half = self.done + first_part(refused - self.done);
            if self.offer(bringer, half)? {
                self.done = half;
            } else {
                refused = half;
            }
        }
        self.blame(bringer);
        // The rest at once: most often there was but one. Without a rest, a table that
        // lacks the bad one may still be due.
        let len = self.order.len();
        if (self.done < len || !self.any) && self.offer(bringer, len)? {
            self.done = len;
        }
        Ok(true)
    }

    /// The next one in the order fails.
    fn blame(&mut self, bringer: &mut impl Bringer) {
        bringer.blame(self.order[self.done], self.error);
        self.done += 1;
    }

    /// Hands the kernel the table with the first `count` candidates. False if it is refused for
    /// one of them.
    fn offer(&mut self, bringer: &mut impl Bringer, count: usize) -> Result<bool, Errno> {
        let mut taken = vec![false; self.numbers];
        self.order[..count].iter().for_each(|&at| taken[at] = true);
        if !bringer.edit(&taken) {
            self.any = true;
            return Ok(true);
        }
        self.calls += 1;
        match bringer.offer() {
            Ok(()) => {
                self.any = true;
                Ok(true)
            }
            Err(e) => {
                self.error = e;
                if e.errno() == libc::EINVAL || self.any {
                    Ok(false)
                } else {
                    Err(e)
                }
            }
        }
    }
}

impl Commit<'_> {
    /// The kernel refused the table with `first`. Hands it one without what it refuses; such
    /// vectors and fixed routes are failures of their own. An error if it takes none at all.
    pub(crate) fn isolate(&mut self, first: Errno) -> Result<(), Errno> {
        self.locked.table.roll_back();
        let candidates = self.candidates();
        isolate(self, candidates, first)
    }

    /// What brings a message, and fixed routes, which come after the plans.
    fn candidates(&self) -> Vec<Candidate> {
        let plans = &self.locked.workspace.plans;
        let vectors = plans.iter().enumerate().filter_map(|(at, plan)| {
            let brings = plan.message.is_some() && !plan.remove && !plan.failed;
            brings.then_some(Candidate { at, message: Some(plan.translated) })
        });
        let fixed = (plans.len()..).zip(&self.fixed).filter(|(_, plan)| plan.is_candidate());
        let fixed = fixed.map(|(at, plan)| Candidate { at, message: plan.message() });
        vectors.chain(fixed).collect()
    }
}

impl Bringer for Commit<'_> {
    fn edit(&mut self, taken: &[bool]) -> bool {
        self.edit_with(|n| taken.get(n).copied().unwrap_or(false));
        self.locked.table.is_changed()
    }

    fn offer(&mut self) -> Result<(), Errno> {
        let offered = self.set_routing();
        if offered.is_err() {
            self.locked.table.roll_back();
        }
        offered
    }

    fn blame(&mut self, candidate: usize, why: Errno) {
        let plans = &mut self.locked.workspace.plans;
        if let Some(n) = candidate.checked_sub(plans.len()) {
            self.report.failures.push(self.fixed[n].fail(&mut self.shared.pool(), why));
            return;
        }
        let plan = &mut plans[candidate];
        let message = plan.message.unwrap_or_default();
        Self::fail(&mut self.report, plan, Step::Message(message), Some(why));
        // It is as it was: open, if it was closed only for this.
        self.report.failures.extend(Self::reopen(self.shared, plan).err());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that refuses one of messages that are all alike.
    struct One {
        bad: usize,
        blamed: Vec<usize>,
        has: Vec<bool>,
        table: Vec<bool>,
        calls: usize,
    }

    impl Bringer for One {
        fn edit(&mut self, taken: &[bool]) -> bool {
            let blamed = |n| self.blamed.contains(&n);
            self.table = taken.iter().enumerate().map(|(n, &t)| t && !blamed(n)).collect();
            self.table != self.has
        }

        fn offer(&mut self) -> Result<(), Errno> {
            self.calls += 1;
            if self.table[self.bad] {
                return Err(Errno::new(libc::EINVAL));
            }
            self.has = self.table.clone();
            Ok(())
        }

        fn blame(&mut self, candidate: usize, _: Errno) {
            self.blamed.push(candidate);
        }
    }

    /// Calls for each place of the bad one, with the first, which has them all.
    fn calls(count: usize) -> Vec<usize> {
        (0..count)
            .map(|bad| {
                let mut one = One {
                    bad,
                    blamed: Vec::new(),
                    has: vec![false; count],
                    table: Vec::new(),
                    calls: 1,
                };
                let candidate = |at| Candidate { at, message: Some(MsiMessage::x86(0, 0)) };
                let candidates = (0..count).map(candidate).collect();
                isolate(&mut one, candidates, Errno::new(libc::EINVAL)).unwrap();
                assert_eq!(one.blamed, [bad]);
                assert!((0..count).all(|n| one.has[n] == (n != bad)), "{bad} of {count}");
                one.calls
            })
            .collect()
    }

    /// No search does with fewer: 2^(k - 1) places are told by k calls after the first, and
    /// what is more than those of one call less takes two places each.
    #[test]
    fn one_bad_message_takes_no_more_calls_than_it_must() {
        for (count, worst) in (1..=40).map(|n| (n, None)).chain([(512, Some(11)), (520, Some(12))])
        {
            let calls = calls(count);
            let k = count.next_power_of_two().ilog2() as usize + 1;
            assert!(calls.iter().all(|&calls| calls <= 1 + k), "{count}: {calls:?}");
            assert!(worst.is_none_or(|worst| worst == 1 + k));
            let most = calls.iter().filter(|&&calls| calls == 1 + k).count();
            let more = count - (count.next_power_of_two() / 2).min(count - 1);
            assert!(most <= 2 * more, "{most} of {count} take {}", 1 + k);
        }
    }
}
