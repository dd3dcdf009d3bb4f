//! A call that has every CPU run a work item, and waits for all of them.

use super::waits::is_grace;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject, Who};
use crate::kind::Why;
use crate::moment::Sym;
use crate::result::Link;
use vmeter_render::quantity::three_digits;

/// Work items on several CPUs that a request waits for.
pub struct EveryCpu;

impl Detector for EveryCpu {
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        // Most items first; in one of two requests at least, or it is not what they wait for.
        let often = subject.queued.iter().filter(|(_, (_, n))| *n * 2 >= subject.timed);
        // A grace period's work runs on some CPU, now this and now that.
        let per_cpu = |work: Sym| cpus(view, work) >= 2 && !is_grace(view.name(work));
        let on_several = often.filter(|((work, _), _)| per_cpu(*work));
        let (&(work, call), &(items, instances)) =
            on_several.max_by_key(|((work, call), (items, _))| (*items, *work, *call))?;
        let waited = subject.ticks(|who, part| {
            who == Who::Kworker || matches!(part, Part::Blocked(c) if c == call)
        });
        let own =
            |who, part| who != Who::Kworker && matches!(part, Part::Kernel(c) if Some(c) == call);
        let own = subject.ticks(own);
        if view.computes_itself((own, waited), items) {
            return None;
        }
        let ticks = waited.saturating_add(own);
        let found = Found { work, call, items, instances, ticks };
        let per_call = items as f64 / instances.max(1) as f64;
        if !view.is_cause(key, subject, ticks) || per_call < 1.0 {
            return None;
        }
        let (cpus, function) = (cpus(view, work), view.name(work));
        let called = call.map_or("a system call", |call| view.name(call));
        let chain = found.links(view, key, subject);
        Some(Candidate {
            why: Why::EveryCpu,
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!(
                "{} waits in {called} until {function} has run on {cpus} CPUs",
                view.subject(key)
            ),
            chain,
            suggestion: format!(
                "keep {called} with its work on every CPU ({function}) out of the request: call it \
                 once beforehand, or use an interface that does not drain per-CPU state; the cost \
                 grows with the host's CPUs"
            ),
            confirm: "vmeter trace stat TRACE --vs TRACE_ON_ONE_CPU (record again with the host \
                      booted maxcpus=1, or with the call left out: the ratio to its peers goes)"
                .into(),
            ..Candidate::default()
        })
    }
}

fn cpus(view: &View<'_>, work: Sym) -> usize {
    let works = &view.evidence.works;
    works.get(&work).filter(|work| work.of_each_cpu()).map_or(0, |work| work.cpus.len())
}

/// Work items that a request waits for.
struct Found {
    work: Sym,
    call: Option<Sym>,
    items: u64,
    instances: u64,
    ticks: u64,
}

impl Found {
    fn links(&self, view: &View<'_>, key: Key, subject: &Subject) -> Vec<Link> {
        let Found { work, call, items, instances, ticks } = *self;
        let cpus = cpus(view, work);
        let function = view.name(work);
        let called = call.map_or("a system call", |call| view.name(call));
        let seen = view.evidence.cpus_seen.iter().filter(|(file, _)| *file == key.file).count();
        let worst = subject.parts.iter().filter(|((who, _), _)| *who == Who::Kworker);
        let worst = worst.filter_map(|(_, amount)| amount.worst).max_by_key(|(ticks, _)| *ticks);
        let per_call = items as f64 / instances.max(1) as f64;
        let each = three_digits(per_call);
        vec![
            view.link(
                key.file,
                format!(
                    "in it, {called} queues {function}: {items} work items in {instances} \
                     accesses, {each} each"
                ),
                (items, 0),
                &[("items_per_access", per_call)],
                &[worst],
            ),
            view.link(
                key.file,
                format!(
                    "{function} runs on {cpus} of {seen} CPUs, and {called} returns when the last \
                     has run it: {} of the accesses' {} are this call",
                    view.time(ticks as f64),
                    view.time(subject.total as f64)
                ),
                (items, ticks),
                &[("cpus", cpus as f64), ("cpus_seen", seen as f64)],
                &[subject.worst],
            ),
        ]
    }
}
