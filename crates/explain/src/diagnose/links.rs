//! A path as steps and as links of a chain, each with its figures.

use super::cause::Cause;
use super::end::End;
use super::path::{Edge, Path};
use crate::detect::growth::calls_grow;
use crate::detect::segments::{Doing, PathSegment, Sum};
use crate::detect::{is_grace, View};
use crate::evidence::tree::Frame;
use crate::result::{Link, Step};
use vmeter_render::quantity::{brief_percent, grouped, three_digits};

impl Cause<'_> {
    /// The path, a step a level.
    pub fn way(&self) -> Vec<Step> {
        let (view, path) = (self.view, self.path);
        // As the claims do: without the time that the host's other load had the CPU.
        let own = |first: &PathSegment| first.all.ticks.saturating_sub(first.load());
        let whole = path.levels.first().map_or(1, own).max(1);
        let steps = path.levels.iter().enumerate().filter_map(|(at, level)| {
            let next = path.levels.get(at + 1).and_then(|next| next.who).map(Frame::Waker);
            let parts = PathSegment::sorted(&level.parts);
            let shown = |state: Frame| match next {
                Some(next) => state == next,
                None => self.ending.end == End::HostLoad || !level.is_crowd(state),
            };
            let part = parts.iter().find(|((_, state), _)| shown(*state));
            let ((call, state), sum) = *part.or(parts.first().filter(|_| next.is_none()))?;
            // It waits for the next in several calls.
            let ticks = match (at, next) {
                (0, Some(next)) => level.ticks(|_, state| state == next),
                (_, None) => self.end_ticks(at, level, sum),
                _ => level.all.ticks,
            };
            let inside = call.map_or(String::new(), |call| format!(" {}", view.frame(call)));
            let doing = match next {
                Some(_) => format!("waits{inside}"),
                None => self.brief_end().unwrap_or(format!("{}{inside}", view.frame(state))),
            };
            let who = level.who.map_or_else(|| view.frame(path.root), |who| view.threads(who));
            let share = ticks as f64 / whole as f64;
            let own = path.own_lock(view, at);
            let locked =
                path.hop(at + 1).is_some_and(|hop| hop.edge == Edge::Lock || self.is_surely(hop))
                    || own.is_some_and(|(_, waits, _)| waits.saturating_mul(2) >= level.all.ticks);
            let lock =
                locked.then(|| call.map_or(String::new(), |call| view.frame_name(call).to_owned()));
            Some(Step { who, doing, time_s: view.seconds(ticks), share, lock })
        });
        steps.collect()
    }

    /// How much of the last level's time its end has.
    fn end_ticks(&self, at: usize, level: &PathSegment, part: Sum) -> u64 {
        match self.ending.end {
            End::Cpu(rival) => {
                let has = level.preempters.iter().filter(|((who, _), _)| *who == rival);
                crate::sum(has.map(|(_, sum)| sum.ticks)).min(level.all.ticks)
            }
            _ if at == 0 => part.ticks,
            // All of a call is for what the kernel does in it.
            _ if at == self.path.doer => self.ending.ticks.max(part.ticks).min(level.all.ticks),
            _ => level.all.ticks,
        }
    }

    /// The end in a few words, where the state itself does not say it.
    fn brief_end(&self) -> Option<String> {
        match self.ending.end {
            End::Cpu(rival) => Some(format!("no CPU: {} has it", self.view.threads(rival))),
            End::Quota => Some("without a CPU: its quota throttles it".into()),
            _ => None,
        }
    }

    /// The level's claims, each with its figures.
    pub fn chain(&self) -> Vec<Link> {
        let levels = self.path.levels.iter().enumerate();
        let mut chain: Vec<Link> =
            levels.map(|(at, level)| link(self.view, self.path, at, level)).collect();
        chain.extend(self.contrast());
        chain.extend(self.by_number());
        chain
    }

    /// How what it costs grows with its number, if it does.
    fn by_number(&self) -> Option<Link> {
        let (view, root, growth) = (self.view, self.path.root, self.growth()?);
        let calls = match root {
            Frame::Request(key) => view.evidence.subjects.get(&key).and_then(calls_grow),
            _ => None,
        };
        let calls = calls.map_or(String::new(), |calls| {
            format!(
                ", in {} + {} × n calls",
                three_digits(calls.intercept.max(0.0)),
                three_digits(calls.slope)
            )
        });
        let nth = match root {
            Frame::Request(_) => "access",
            _ => "activation (wake-up to next sleep)",
        };
        let claim = format!(
            "the n-th {nth} takes {} + {} × n (R² {}){calls}: the total time is quadratic",
            view.time(growth.intercept.max(0.0)),
            view.time(growth.slope),
            three_digits(growth.r2)
        );
        let figures = [("slope_ticks", growth.slope), ("r2", growth.r2)];
        Some(view.link(file_of(view, root), claim, (0, 0), &figures, &[None]))
    }

    /// What makes some instances at the end longer than others.
    fn contrast(&self) -> Option<Link> {
        let (view, file) = (self.view, file_of(self.view, self.path.root));
        let who = self.path.group_at(view, self.path.doer)?;
        match self.ending.call {
            Some(call) => view.contrast_of_calls(file, who, call),
            None if !view.evidence.seen(file).syscalls => view.contrast_of_activations(file, who),
            None => None,
        }
    }

    /// The thread whose profile would show the cause; none of the kernel's.
    pub fn culprit(&self) -> Option<String> {
        let groups = &self.view.evidence.groups;
        let who = match self.ending.end {
            End::Cpu(rival) => Some(rival),
            _ => self.doer(),
        };
        who.filter(|who| !groups.is_kernel(*who)).map(|who| self.view.threads(who))
    }
}

fn link(view: &View<'_>, path: &Path, at: usize, level: &PathSegment) -> Link {
    let name = level.who.map_or_else(|| view.frame(path.root), |who| view.threads(who));
    let whole = level.all.ticks.max(1);
    let mut words = calls(view, level);
    for ((rival, doing), sum) in PathSegment::sorted(&level.preempters).into_iter().take(2) {
        if sum.ticks * 10 >= whole {
            let doing = doing.map_or(String::new(), |doing| format!(" {}", view.frame(doing)));
            let share = brief_percent(sum.ticks as f64 / whole as f64);
            words.push(format!("{}{doing} has the CPU meanwhile {share}", view.threads(rival)));
        }
    }
    let faults = level.parts.iter().filter(|((_, state), _)| *state == Frame::Faults);
    let faults: u64 = faults.map(|(_, sum)| sum.count).sum();
    if faults > 0 {
        words.push(format!("{} page faults", grouped(&faults.to_string())));
    }
    words.extend(missing(view, path, level));
    if level.assumed.ticks > 0 {
        let time = view.time(level.assumed.ticks as f64);
        words.push(format!(
            "for {time} of that wait the trace does not show what the thread waited for: vmeter \
                assumes the same cause as in the recorded part"
        ));
    }
    let time = view.time(whole as f64);
    let role = match (at, view.is_beyond(), path.root) {
        (0, true, _) => format!("{name}, {time} more than in the other trace"),
        (_, true, _) => format!("{name}, which waited {time} longer"),
        (0, _, Frame::Life(_) | Frame::Thread(..)) => format!("{name}, seen for {time}"),
        (0, ..) => format!("{name}, {time} in all"),
        _ => format!("{name}, waited for {time}"),
    };
    let claim = format!("{role}: {}", words.join("; "));
    let count = level.all.count.max(level.calls.values().map(|sum| sum.count).sum());
    let file = file_of(view, path.root);
    let share = whole as f64 / path.total().max(1) as f64;
    view.link(file, claim, (count, level.all.ticks), &[("share", share)], &[level.all.worst])
}

/// What is not recorded of a level, and the events that would tell.
fn missing(view: &View<'_>, path: &Path, level: &PathSegment) -> Option<String> {
    let kernel = level.who.is_some_and(|who| view.evidence.groups.is_kernel(who));
    let none = level.calls.keys().all(Option::is_none);
    let wakes = view.evidence.seen_anywhere().wakes;
    let unnamed = |state| match state {
        Frame::Asleep => true,
        Frame::Deep => !wakes,
        _ => false,
    };
    let asleep = level.ticks(|_, state| unnamed(state));
    let interrupt = level.ticks(|_, state| state == Frame::Interrupt);
    if none && kernel && view.evidence.works.is_empty() {
        return Some("the trace does not show what they run (record workqueue:*)".into());
    }
    if none && !kernel && !view.evidence.seen(file_of(view, path.root)).syscalls {
        return Some("the trace does not show in which calls (record raw_syscalls)".into());
    }
    let much = |ticks: u64| ticks * 3 >= level.all.ticks;
    match (much(asleep), much(interrupt)) {
        (true, _) => Some(
            "the trace lacks the events that show what wakes it (sched_waking, \
            irq:*)"
                .into(),
        ),
        (_, true) => Some("the trace does not show which interrupt (record irq:*, timer:*)".into()),
        _ => None,
    }
}

/// The file that a subject is in.
pub fn file_of(view: &View<'_>, root: Frame) -> u16 {
    match root {
        Frame::Life(group) | Frame::Thread(group, _) => {
            view.evidence.groups.get(group).map_or(0, |group| group.first.file)
        }
        Frame::Request(key) => key.file,
        _ => 0,
    }
}

/// On how many CPUs a work function runs, if on each.
fn on_each(view: &View<'_>, doing: Option<Frame>) -> String {
    let Some(Frame::Work(work)) = doing else { return String::new() };
    let cpus = view.evidence.works.get(&work).filter(|work| work.of_each_cpu());
    match cpus.map(|work| work.cpus.len()) {
        Some(cpus) if !is_grace(view.name(work)) => format!(" on each of {cpus} CPUs"),
        _ => String::new(),
    }
}

/// What a level does, by its calls.
fn calls(view: &View<'_>, level: &PathSegment) -> Vec<String> {
    // Time that the host's other load had the CPU is left out.
    let crowd = |state: Frame| level.is_crowd(state);
    let noise = level.ticks(|_, state| crowd(state));
    let whole = level.all.ticks.saturating_sub(noise).max(1);
    let mut parts: Vec<(Doing, Sum)> = PathSegment::sorted(&level.parts);
    parts.retain(|((_, state), sum)| sum.ticks * 20 >= whole && !crowd(*state));
    let calls = PathSegment::sorted(&level.calls).into_iter().map(|(call, sum)| {
        let left_out = level.ticks(|of, state| of == call && crowd(state));
        (call, Sum { ticks: sum.ticks.saturating_sub(left_out), ..sum })
    });
    let much = calls.filter(|(_, sum)| sum.ticks * 20 >= whole).take(3);
    let left_out = (noise * 20 >= level.all.ticks).then(|| {
        format!("left out: {} in which other programs had the CPU", view.time(noise as f64))
    });
    let words = much.map(|(call, sum)| {
        let name = call.map_or("outside calls".to_string(), |call| view.frame(call));
        let share = brief_percent(sum.ticks as f64 / whole as f64);
        let times = match sum.count {
            0 | 1 => String::new(),
            count => format!(" ({} times)", grouped(&count.to_string())),
        };
        let inside = parts.iter().filter(|((c, _), _)| *c == call).take(3);
        let inside: Vec<String> = inside
            .map(|((_, state), part)| {
                let share = brief_percent(part.ticks as f64 / whole as f64);
                format!("{} {share}", view.frame(*state))
            })
            .collect();
        format!("{name}{} {share}{times}: {}", on_each(view, call), inside.join(", "))
    });
    words.chain(left_out).collect()
}
