//! A table that KVM refuses for one message: the others of the batch are committed without
//! it, and it is named.
//!
//! A guest writes messages, and KVM refuses some (`EINVAL`), with the table that they are in.
//! Which one it was is found by halves: a table with the first k messages of the batch is
//! refused from some k on, and that one is bad. What KVM is known to refuse comes last and
//! is tried last, so that the usual case takes two or three calls; before it what is unlike the
//! others (of another address or delivery mode), rarest last.
//!
//! Each call answers yes or no, and one that was refused must be followed by one without the
//! bad message, which only those do not cost that find it by being accepted without it. So k
//! calls after the first tell one bad message of at most 2^(k-1), and of 520 some cost one
//! more than of 512. The parts are cut so that those are the few that come first, which are
//! most like the others.

use crate::commit::Commit;
use crate::foreign::Errno;
use crate::message::MsiMessage;
use crate::report::Step;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Calls of `KVM_SET_GSI_ROUTING` that one commit makes at most to find bad messages: those
/// that it has not told apart by then fail together.
const MOST_CALLS: usize = 48;

/// The messages in question, in the order in which they are tried.
struct Search {
    /// Places of plans, those that are good among them first.
    order: Vec<usize>,
    /// So many of them are in the kernel's table, or known to be bad.
    done: usize,
    calls: usize,
    /// The kernel has a table of this commit.
    any: bool,
    /// Why it refused the last one.
    error: Errno,
}

/// What messages have in common but for a vector and a destination (Intel SDM vol. 3, 11.11).
type Kind = (u64, u32, bool);

fn kind(message: &MsiMessage) -> Kind {
    (message.address & !0xf_f000, message.data & !0xff, message.devid.is_some())
}

/// How many of `count` candidates are tried first. The others are a power of two, so that what
/// does not fit into one is left for the first; and these are few enough for the call saved.
fn first_part(count: usize) -> usize {
    let (below, above) = (1 << count.ilog2(), count.next_power_of_two());
    (count - below / 2).min(above / 2).max(1)
}

impl Commit<'_> {
    /// The kernel refused the table with `first`. Hands it one without what it refuses; such
    /// vectors are failures of their own. An error if it takes none at all.
    pub(crate) fn isolate(&mut self, first: Errno) -> Result<(), Errno> {
        if first.errno() != libc::EINVAL {
            return Err(first);
        }
        self.locked.table.roll_back();
        let mut search =
            Search { order: self.messages(), done: 0, calls: 0, any: false, error: first };
        let plans = &self.locked.workspace.plans;
        let good = search.order.iter().filter(|&&n| !plans[n].translated.is_suspect()).count();
        let len = search.order.len();
        if good < len && self.offer(&mut search, good)? {
            search.done = good;
            if search.done + 1 == len {
                self.blame(&mut search);
            }
        } else if len == 0 || !self.fixed.is_empty() && !self.offer(&mut search, 0)? {
            // It is no message: a table without any of them is refused, too.
            return Err(first);
        }
        while search.done < len {
            if !self.narrow(&mut search)? {
                break;
            }
        }
        // All of them failed: the table without any.
        if search.any || self.offer(&mut search, len)? {
            Ok(())
        } else {
            Err(first)
        }
    }

    /// Places of the plans that bring a message, suspects last.
    fn messages(&self) -> Vec<usize> {
        let plans = &self.locked.workspace.plans;
        let brings = |n: &usize| {
            let plan = &plans[*n];
            plan.message.is_some() && !plan.remove && !plan.failed
        };
        let mut order: Vec<usize> = (0..plans.len()).filter(brings).collect();
        let mut alike: HashMap<Kind, usize> = HashMap::new();
        for &n in &order {
            *alike.entry(kind(&plans[n].translated)).or_default() += 1;
        }
        order.sort_by_cached_key(|&n| {
            let message = &plans[n].translated;
            (message.is_suspect(), Reverse(alike.get(&kind(message)).copied()))
        });
        order
    }

    /// Finds the next bad one; everything else up to it is committed. False if the calls are
    /// used up: then all that is left has failed.
    fn narrow(&mut self, search: &mut Search) -> Result<bool, Errno> {
        let mut refused = search.order.len();
        while refused - search.done > 1 {
            if search.calls >= MOST_CALLS {
                while search.done < search.order.len() {
                    self.blame(search);
                }
                return Ok(false);
            }
            let half = search.done + first_part(refused - search.done);
            if self.offer(search, half)? {
                search.done = half;
            } else {
                refused = half;
            }
        }
        self.blame(search);
        // The rest at once: most often there was but one. Without a rest, a table that
        // lacks the bad one may still be due.
        let len = search.order.len();
        if (search.done < len || !search.any) && self.offer(search, len)? {
            search.done = len;
        }
        Ok(true)
    }

    /// The next one in the order fails.
    fn blame(&mut self, search: &mut Search) {
        let n = search.order[search.done];
        search.done += 1;
        let plan = &mut self.locked.workspace.plans[n];
        let message = plan.message.unwrap_or_default();
        Self::fail(&mut self.report, plan, Step::Message(message), Some(search.error));
        // It is as it was: open, if it was closed only for this.
        if let Err(failure) = self.reopen(&self.locked.workspace.plans[n]) {
            self.report.failures.push(failure);
        }
        self.locked.workspace.plans[n].closed = None;
    }

    /// Hands the kernel the table with the first `count` messages, those that failed left
    /// out. False if it is refused for one of them.
    fn offer(&mut self, search: &mut Search, count: usize) -> Result<bool, Errno> {
        let mut taken = vec![false; self.locked.workspace.plans.len()];
        search.order[..count].iter().for_each(|&n| taken[n] = true);
        self.edit_with(|n| taken[n]);
        if !self.locked.table.is_changed() {
            search.any = true;
            return Ok(true);
        }
        search.calls += 1;
        match self.set_routing() {
            Ok(()) => {
                search.any = true;
                Ok(true)
            }
            Err(e) => {
                self.locked.table.roll_back();
                search.error = e;
                if e.errno() == libc::EINVAL || search.any {
                    Ok(false)
                } else {
                    Err(e)
                }
            }
        }
    }
}
