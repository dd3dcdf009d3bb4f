//! A way as the links of a chain, and what is missing for more.

use super::super::growth::series_rises;
use super::super::levels::{Doing, Level, Sum};
use super::super::waits::is_grace;
use super::super::View;
use super::Story;
use crate::evidence::calls::Provoked;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use crate::result::{Link, Step};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped, three_digits};
use vmeter_trace::hash::FastMap;

/// Functions run that are a pattern.
const MANY: u64 = 20;

impl Story {
    /// The way, a step a level.
    pub fn way(&self, view: &View<'_>) -> Vec<Step> {
        let whole = self.levels.first().map_or(1, |first| first.all.ticks).max(1);
        let steps = self.levels.iter().enumerate().filter_map(|(at, level)| {
            let next = self.levels.get(at + 1).and_then(|next| next.who).map(Frame::Waker);
            let parts = Level::sorted(&level.parts).into_iter();
            let mut parts = parts.filter(|((_, state), _)| next.is_none_or(|next| *state == next));
            let ((call, state), sum) = parts.next()?;
            // One waits for the next in several calls.
            let ticks = match (at, next) {
                (0, Some(next)) => level.ticks(|_, state| state == next),
                (0, None) => sum.ticks,
                _ => level.all.ticks,
            };
            let rival = self.rival().filter(|_| next.is_none() && state == Frame::NoCpu);
            let state = match (next, rival) {
                (Some(_), _) => "waits".to_string(),
                (None, Some((rival, _))) => format!("no CPU: {} has it", view.threads(rival)),
                (None, None) => view.frame(state),
            };
            let inside = call.map_or(String::new(), |call| format!(" {}", view.frame(call)));
            Some(Step {
                who: level.who.map_or_else(|| self.subject(view), |who| view.threads(who)),
                doing: format!("{state}{inside}"),
                time_s: view.seconds(ticks),
                share: ticks as f64 / whole as f64,
            })
        });
        steps.collect()
    }

    /// The thread at the end of the way; none of the kernel's, which no profile of a process has.
    pub(super) fn culprit(&self, view: &View<'_>) -> Option<String> {
        let who = self.last().who.filter(|who| !view.evidence.groups.is_kernel(*who))?;
        Some(view.threads(who))
    }

    /// A level as a link of the chain.
    pub(super) fn link(&self, view: &View<'_>, at: usize, level: &Level) -> Link {
        let name = match level.who {
            Some(who) => view.threads(who),
            None => self.subject(view),
        };
        let whole = level.all.ticks.max(1);
        let mut words = calls(view, level);
        let mut rivals = Level::sorted(&level.rivals);
        rivals.retain(|(_, sum)| sum.ticks * 10 >= whole);
        for ((rival, doing), sum) in rivals.iter().take(2) {
            let doing = doing.map_or(String::new(), |doing| format!(" {}", view.frame(doing)));
            words.push(format!(
                "{}{doing} has the CPU meanwhile {}",
                view.threads(*rival),
                brief_percent(sum.ticks as f64 / whole as f64)
            ));
        }
        let faults: u64 = level
            .parts
            .iter()
            .filter(|((_, s), _)| *s == Frame::Faults)
            .map(|(_, s)| s.count)
            .sum();
        if faults > 0 {
            words.push(format!("{} page faults", grouped(&faults.to_string())));
        }
        words.extend(self.provoked(view, level));
        words.extend(self.missing(view, level));
        if level.assumed.ticks > 0 {
            words.push(format!(
                "who ended {} of that is not recorded: taken to be as where it is",
                view.time(level.assumed.ticks as f64)
            ));
        }
        let role = match (at, self.root) {
            (0, _) if view.is_beyond() => {
                format!("{name}, {} beyond the other trace", view.time(whole as f64))
            }
            (_, _) if view.is_beyond() => {
                format!("{name}, waited for {} longer", view.time(whole as f64))
            }
            (0, Frame::Life(_) | Frame::Thread(..)) => {
                format!("{name}, seen for {}", view.time(whole as f64))
            }
            (0, _) => format!("{name}, {} in all", view.time(whole as f64)),
            _ => format!("{name}, waited for {}", view.time(whole as f64)),
        };
        let claim = format!("{role}: {}", words.join("; "));
        let count = level.all.count.max(level.calls.values().map(|sum| sum.count).sum());
        view.link(
            self.file(view),
            claim,
            (count, level.all.ticks),
            &[("share", whole as f64 / self.busy.max(1) as f64)],
            &[level.all.worst],
        )
    }

    /// What makes some of the calls at the end of the way longer than others; where calls are
    /// not recorded, some of the activations.
    pub(super) fn contrast(&self, view: &View<'_>) -> Option<Link> {
        let (file, own) = (self.file(view), self.subject_group(view)?);
        if let Some((who, call, _)) = self.call(view) {
            return view.contrast_of_calls(file, who.unwrap_or(own), call);
        }
        let calls = view.evidence.seen(file).syscalls;
        let who = self.last().who.filter(|who| !view.evidence.groups.is_kernel(*who));
        (!calls).then(|| view.contrast_of_activations(file, who.unwrap_or(own))).flatten()
    }

    /// The call at the end of the way has a CPU for longer each time.
    pub(super) fn grows(&self, view: &View<'_>) -> Option<Link> {
        let (who, call, _) = self.call(view).or(self.in_calls(view))?;
        let who = who.or(self.subject_group(view))?;
        let calls = view.evidence.ledger.calls.get(&(who, call))?;
        let growth = series_rises(&calls.times, |point| point.calls)?;
        let claim = format!(
            "it grows: call n of {} of {} has a CPU for {} + {} × n (R² {}), {} at the end",
            grouped(&calls.count.to_string()),
            view.name(call),
            view.time(growth.intercept.max(0.0)),
            view.time(growth.slope),
            three_digits(growth.r2),
            view.time(growth.last)
        );
        let figures = [("growth_ticks", growth.slope), ("r2", growth.r2)];
        Some(view.link(
            self.file(view),
            claim,
            (calls.count, calls.ticks),
            &figures,
            &[calls.worst],
        ))
    }

    /// The work function that the subject has workers run most, if about once a call.
    pub(super) fn provoked_works(&self, view: &View<'_>) -> Option<(Sym, u64)> {
        let own = self.subject_group(view)?;
        let mut by: BTreeMap<Sym, u64> = BTreeMap::new();
        let all = view.evidence.ledger.provoked.iter().filter(|((who, ..), _)| *who == own);
        all.for_each(|((.., function), p)| *by.entry(*function).or_default() += p.count);
        let (work, count) = by.into_iter().max_by_key(|(_, count)| *count)?;
        let (_, _, sum) = self.in_calls(view)?;
        (count * 2 >= sum.count).then_some((work, count))
    }

    /// What a level's threads have others do.
    fn provoked(&self, view: &View<'_>, level: &Level) -> Option<String> {
        let who = level.who.or(self.subject_group(view))?;
        let ledger = &view.evidence.ledger;
        let most = |all: &FastMap<(GroupId, Option<Sym>, Sym), Provoked>| {
            let own = all.iter().filter(|((group, ..), _)| *group == who);
            let mut by: BTreeMap<Sym, u64> = BTreeMap::new();
            own.for_each(|((.., function), p)| *by.entry(*function).or_default() += p.count);
            by.into_iter().max_by_key(|(_, count)| *count)
        };
        let told = |(function, count): (Sym, u64), whom: &str| {
            let often = count >= MANY && count * 10 >= level.all.count;
            let count = grouped(&count.to_string());
            let name = view.name(function);
            let why = if is_grace(name) { " (a grace period)" } else { "" };
            often.then(|| format!("has {whom} run {name}{why} {count} times"))
        };
        let others = most(&ledger.on_cpus).and_then(|most| told(most, "other CPUs"));
        others.or_else(|| most(&ledger.provoked).and_then(|most| told(most, "kernel workers")))
    }

    /// What is not recorded of a level, and the event that would tell.
    pub(super) fn missing(&self, view: &View<'_>, level: &Level) -> Option<String> {
        let kernel = level.who.is_some_and(|who| view.evidence.groups.is_kernel(who));
        let none = level.calls.keys().all(Option::is_none);
        let asleep = level.ticks(|_, state| state == Frame::Asleep);
        if none && kernel && view.evidence.works.is_empty() {
            return Some("what they run is not recorded (workqueue:*)".into());
        }
        if none && !kernel && !view.evidence.seen(self.file(view)).syscalls {
            return Some("in which calls is not recorded (raw_syscalls)".into());
        }
        (asleep * 3 >= level.all.ticks)
            .then(|| "who wakes it is not recorded (sched_waking, irq:*)".into())
    }

    pub(super) fn file(&self, view: &View<'_>) -> u16 {
        match self.root {
            Frame::Life(group) | Frame::Thread(group, _) => {
                view.evidence.groups.get(group).map_or(0, |group| group.first.file)
            }
            Frame::Request(key) => key.file,
            _ => 0,
        }
    }
}

/// What a level does, by its calls.
fn calls(view: &View<'_>, level: &Level) -> Vec<String> {
    let whole = level.all.ticks.max(1);
    let mut parts: Vec<(Doing, Sum)> = Level::sorted(&level.parts);
    parts.retain(|(_, sum)| sum.ticks * 20 >= whole);
    let mut words: Vec<String> = Vec::new();
    let calls = Level::sorted(&level.calls);
    for (call, sum) in calls.iter().filter(|(_, sum)| sum.ticks * 20 >= whole).take(3) {
        let call_name = call.map_or("outside calls".to_string(), |call| view.frame(call));
        let share = brief_percent(sum.ticks as f64 / whole as f64);
        let times = if sum.count > 1 {
            format!(" ({} times)", grouped(&sum.count.to_string()))
        } else {
            String::new()
        };
        let inside = parts.iter().filter(|((c, _), _)| c == call).take(3);
        let inside: Vec<String> = inside
            .map(|((_, state), part)| {
                format!(
                    "{} {}",
                    view.frame(*state),
                    brief_percent(part.ticks as f64 / whole as f64)
                )
            })
            .collect();
        words.push(format!("{call_name} {share}{times}: {}", inside.join(", ")));
    }
    words
}
