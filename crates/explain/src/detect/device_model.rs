//! Xen: ports whose time goes into the round trip to the device model in dom0.

use super::view::{LEAST_COUNT, LEAST_SHARE};
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject, Who};
use crate::kind::Why;
use crate::moment::{Place, Sym};
use crate::result::{Link, Severity, VcpuSplit};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped};

/// Most ports named.
const NAMED: usize = 5;

/// Requests that pause a vCPU until the device model has served them.
pub struct DeviceModel;

impl Detector for DeviceModel {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let served = |subject: &Subject| subject.ticks(|_, part| in_model(part)) > 0;
        let mut all = view.requests();
        all.retain(|(_, subject)| served(subject));
        all.sort_by_key(|(_, subject)| std::cmp::Reverse(subject.total));
        self.of(view, &all).into_iter().collect()
    }
}

fn in_model(part: Part) -> bool {
    matches!(part, Part::Delivery | Part::Return | Part::Paused)
}

impl DeviceModel {
    fn of(&self, view: &View<'_>, all: &[(Key, &Subject)]) -> Option<Candidate> {
        let (key, _) = *all.first()?;
        let count: u64 = all.iter().map(|(_, subject)| subject.timed).sum();
        let total = crate::sum(all.iter().map(|(_, subject)| subject.total));
        let sum = |want: &dyn Fn(Who, Part) -> bool| -> u64 {
            crate::sum(all.iter().map(|(_, subject)| subject.ticks(want)))
        };
        let inside = sum(&|_, part| matches!(part, Part::XenRunning | Part::XenRunnable));
        let saving = total.saturating_sub(inside);
        if count < LEAST_COUNT || view.share(saving) < LEAST_SHARE {
            return None;
        }
        let mut chain = vec![self.ports(view, key, all, (count, total)), self.split(view, key)];
        let model = view.evidence.xen.model().map(|model| view.thread(model));
        if let Some(model) = &model {
            chain.push(self.inside(view, key, model, all, total));
            chain.extend(self.switches(view, model));
        }
        let provoked = self.provoked(view);
        let who = model.unwrap_or_else(|| "the device model".into());
        if let Some((words, _, link)) = provoked.filter(|(_, items, _)| items * 20 >= count) {
            return Some(on_every_cpu(view, key, (who, words), saving, (link, chain)));
        }
        Some(Candidate {
            why: Why::DeviceModel,
            subject: format!("{} and {} other ports", view.subject(key), all.len() - 1),
            saving,
            summary: format!(
                "the vCPU waits while {who} serves {} accesses to {} ports; these waits are {} of the traced time",
                grouped(&count.to_string()),
                all.len(),
                brief_percent(view.share(total)),
            ),
            chain,
            suggestion:
                "make fewer accesses: use DMA or a paravirtual disk instead of IDE by PIO; and \
                    make each access cheaper in the device model: avoid system calls and a busy \
                    dom0 vCPU"
                    .into(),
            confirm: "trace-cmd record -C x86-tsc -e raw_syscalls -e sched -e workqueue -P PID \
                (record in dom0, and give both traces, Xen's and dom0's, to `vmeter explain`: it \
                then shows the calls during the accesses)"
                .into(),
            // What emulation costs: no fault of the device model's by itself.
            max_severity: Some(Severity::Low),
            ..Candidate::default()
        })
    }

    /// Work functions that kworkers run because of the device model: in words, how many
    /// runs, and the link.
    fn provoked(&self, view: &View<'_>) -> Option<(String, u64, Link)> {
        let model = view.evidence.xen.model()?;
        let group = view.evidence.groups.group_of(model)?;
        let all = view.evidence.ledger.provoked.iter().filter(|((who, ..), _)| *who == group);
        let mut by: BTreeMap<Sym, (u64, Option<Place>)> = BTreeMap::new();
        for ((_, _, function), provoked) in all {
            let sum = by.entry(*function).or_default();
            sum.0 += provoked.count;
            sum.1 = sum.1.or(provoked.first);
        }
        let mut by: Vec<(Sym, (u64, Option<Place>))> = by.into_iter().collect();
        by.sort_by_key(|(function, (count, _))| (std::cmp::Reverse(*count), *function));
        let items = by.iter().map(|(_, (count, _))| count).sum();
        let said = |(function, (count, _)): &(Sym, (u64, Option<Place>))| {
            format!("{} {} times", view.name(*function), grouped(&count.to_string()))
        };
        let words: Vec<String> = by.iter().take(2).map(said).collect();
        let all = by.iter().map(|(function, own)| {
            let work = view.evidence.works.get(function);
            let (runs, cpus) = work.map_or((0, 0), |work| (work.runs, work.cpus.len()));
            format!("{} (of {runs} runs in all, on {cpus} CPUs)", said(&(*function, *own)))
        });
        let claim = format!(
            "{} wakes kworkers from process context, and they then run {}; the call that wakes them is {}",
            view.thread(model),
            all.take(5).collect::<Vec<_>>().join(", "),
            if view.evidence.seen(model.file).syscalls {
                "in the trace"
            } else {
                "not recorded (raw_syscalls)"
            }
        );
        let places: Vec<_> =
            by.iter().map(|(_, (_, first))| first.map(|place| (0, place))).collect();
        let link = view.link(model.file, claim, (items, 0), &[], &places);
        (!words.is_empty()).then(|| (words.join(" and "), items, link))
    }

    fn ports(
        &self,
        view: &View<'_>,
        key: Key,
        all: &[(Key, &Subject)],
        (count, total): (u64, u64),
    ) -> Link {
        let named = all.iter().take(NAMED).map(|(key, subject)| {
            format!(
                "{} {}× {} = {}",
                view.subject(*key),
                subject.timed,
                view.time(subject.total as f64 / subject.timed.max(1) as f64),
                view.time(subject.total as f64)
            )
        });
        let claim = format!(
            "{count} port accesses, each measured from VMEXIT to VMENTRY, take {} in all ({} of \
                the traced time); most of this time goes to: {}",
            view.time(total as f64),
            brief_percent(view.share(total)),
            named.collect::<Vec<_>>().join("; ")
        );
        let worst = all.iter().take(NAMED).map(|(_, subject)| subject.worst).collect::<Vec<_>>();
        view.link(key.file, claim, (count, total), &[("ports", all.len() as f64)], &worst)
    }

    fn split(&self, view: &View<'_>, key: Key) -> Link {
        let vcpus: Vec<VcpuSplit> = view.vcpus();
        let words = vcpus.iter().map(|vcpu| {
            let parts = vcpu.parts.iter().map(|p| format!("{} {}", p.name, brief_percent(p.share)));
            format!("{}: {}", vcpu.vcpu, parts.collect::<Vec<_>>().join(", "))
        });
        let claim = format!("the vCPU's time: {}", words.collect::<Vec<_>>().join("; "));
        let exits = view.evidence.xen.vcpus.values().map(|vcpu| vcpu.exits).sum();
        let ticks = crate::sum(view.evidence.xen.vcpus.values().map(|vcpu| vcpu.exit_ticks));
        view.link(key.file, claim, (exits, ticks), &[], &[])
    }

    /// How dom0 gets to its work.
    fn switches(&self, view: &View<'_>, model: &str) -> Option<Link> {
        let tid = view.evidence.xen.model()?;
        let from_idle = view.evidence.threads.get(&tid)?.from_idle;
        let mut irqs: Vec<_> =
            view.evidence.irqs.iter().filter(|(s, _)| s.file() == tid.file).collect();
        irqs.sort_by_key(|(sym, count)| (std::cmp::Reverse(**count), **sym));
        let named = irqs.iter().filter(|(sym, _)| !view.name(**sym).contains("timer"));
        let named = named.take(3).map(|(sym, count)| format!("{count} of {}", view.name(**sym)));
        let claim = format!(
            "in dom0, {model} starts to run on an idle CPU {from_idle} times; dom0's \
                most frequent interrupts, apart from timers, are {}",
            named.collect::<Vec<_>>().join(", ")
        );
        Some(view.link(tid.file, claim, (from_idle, 0), &[], &[]))
    }

    /// What dom0's trace says of the accesses.
    fn inside(
        &self,
        view: &View<'_>,
        key: Key,
        model: &str,
        all: &[(Key, &Subject)],
        total: u64,
    ) -> Link {
        let mut merged = Subject::default();
        for (_, subject) in all {
            for (part, amount) in &subject.parts {
                let sum = merged.parts.entry(*part).or_default();
                sum.ticks = sum.ticks.saturating_add(amount.ticks);
                sum.count += amount.count;
            }
        }
        let parts = view.parts(&merged.parts).into_iter().map(|(name, ticks)| {
            format!(
                "{name} {} ({})",
                brief_percent(ticks as f64 / total.max(1) as f64),
                view.time(ticks as f64)
            )
        });
        let wakes: u64 = merged
            .parts
            .iter()
            .filter(|((_, part), _)| *part == Part::Delivery)
            .map(|(_, amount)| amount.count)
            .sum();
        let claim = format!(
            "in these accesses dom0's {model} was asleep and had to be woken {wakes} times; time \
                of these accesses: {}",
            parts.take(8).collect::<Vec<_>>().join(", ")
        );
        let of_model = all.iter().flat_map(|(_, subject)| subject.parts.iter());
        let worst = of_model
            .filter(|((who, _), _)| matches!(who, Who::Thread(_)))
            .filter_map(|(_, amount)| amount.worst)
            .max_by_key(|(ticks, _)| *ticks);
        view.link(key.file, claim, (wakes, total), &[("wake_ups", wakes as f64)], &[worst])
    }
}

/// The device model has workers run something for many of the accesses.
fn on_every_cpu(
    view: &View<'_>,
    key: Key,
    (who, functions): (String, String),
    saving: u64,
    (link, mut chain): (Link, Vec<Link>),
) -> Candidate {
    chain.insert(0, link);
    let group = view.evidence.xen.model().and_then(|model| view.evidence.groups.group_of(model));
    // Of the accesses' time only what those activations take beyond the others.
    let contrast = group.and_then(|group| view.contrast_of_activations(key.file, group));
    chain.splice(1..1, contrast);
    Candidate {
        why: Why::EveryCpu,
        subject: who.clone(),
        saving,
        summary: format!("{who} makes kworkers run {functions} while the guest waits"),
        chain,
        suggestion: "lock the hypercall buffer in memory once, not for each hypercall. mlock (in \
            older kernels), move_pages and mbind make the kernel drain the page lists of every \
            CPU, or wait for every CPU. As a stop-gap, give dom0 fewer CPUs"
            .into(),
        confirm: "trace-cmd record -C x86-tsc -e raw_syscalls -e sched -e workqueue -e irq \
            (record in dom0 too, and explain both traces, to see which call wakes the workers)"
            .into(),
        ..Candidate::default()
    }
}
