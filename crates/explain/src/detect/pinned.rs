//! Threads of a program that wait for each other's CPU, and never run on another that is there.

use super::habits::link;
use super::levels::levels;
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::result::Severity;
use vmeter_render::quantity::{brief_percent, grouped};

/// Share of the traced time that they wait so, and how often.
const SHARE: f64 = 0.1;
const OFTEN: u64 = 20;
/// Share of the traced time that another CPU has nothing to do, from which who never runs there may
/// not: a busy one is left alone by itself.
const IDLE: f64 = 0.02;

/// Everything of the kind: the one that waits most.
pub fn pinned(view: &View<'_>) -> Option<Candidate> {
    let evidence = view.evidence;
    if evidence.ends.any_gaps() || evidence.cpus_seen.len() < 2 {
        return None;
    }
    let one = evidence.cpus().into_iter().filter(|(who, cpus)| {
        let many = evidence.groups.get(*who).is_some_and(|group| group.many);
        let asked = !evidence.groups.is_kernel(*who) && !view.is_foreign(*who);
        many && asked && cpus.count_ones() == 1
    });
    let waits = one.filter_map(|(who, cpus)| Some((waits(view, who)?, who, cpus)));
    let ((ticks, count), who, cpus) = waits.max()?;
    let file = evidence.groups.get(who)?.first.file;
    let (name, cpu) = (view.threads(who), cpus.trailing_zeros());
    let free = view.share(evidence.runs.idle_beside(cpu)) >= IDLE;
    let claim = format!(
        "{name} runs on CPU {cpu} only, of {}, and waits {} times while another of its threads has \
         it: {}, {} of the traced time",
        evidence.cpus_seen.len(),
        grouped(&count.to_string()),
        view.time(ticks as f64),
        brief_percent(view.share(ticks))
    );
    Some(Candidate {
        kind: "no-cpu",
        summary: format!(
            "threads of {name} wait for each other's CPU: all run on CPU {cpu} only{}",
            if free { ": pinned, it seems" } else { ", the others are busy" }
        ),
        subject: name,
        saving: ticks,
        chain: vec![link(view, file, claim, count, ticks, None)],
        suggestion: "let it run on more CPUs (taskset, cpuset.cpus, sched_setaffinity)".into(),
        confirm: "taskset -pc PID; grep Cpus_allowed_list /proc/PID/status".into(),
        at_most: Some(if free { Severity::Medium } else { Severity::Low }),
        aside: !free,
        ..Candidate::default()
    })
}

/// Ticks and times that threads of a name wait for a CPU that another of them has, if much.
fn waits(view: &View<'_>, who: GroupId) -> Option<(u64, u64)> {
    let level = levels(view, Frame::Life(who)).into_iter().next()?;
    let own = level.rivals.iter().filter(|((rival, _), _)| *rival == who);
    let ticks = crate::sum(own.map(|(_, sum)| sum.ticks));
    let waiting = |((_, state), sum): (&_, &super::levels::Sum)| {
        (*state == Frame::NoCpu).then_some(sum.count)
    };
    let count = level.parts.iter().filter_map(waiting).sum();
    (view.share(ticks) >= SHARE && count >= OFTEN).then_some((ticks, count))
}
