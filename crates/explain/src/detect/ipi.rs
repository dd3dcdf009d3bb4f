//! CPUs that interrupt each other all the time.

use super::story::of_function;
use super::{Candidate, Detector, View};
use crate::evidence::groups::GroupId;
use crate::moment::Sym;
use crate::result::{Evidence, Link, Severity};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped, three_digits};

/// Functions that a thread has other CPUs run, and a second, from which it is told.
const LEAST: u64 = 200;
const RATE: f64 = 1000.0;

/// IPIs a second and CPU from which it is called a storm: at about 2 µs on both sides each,
/// two in a hundred of a CPU's time.
const STORM: f64 = 10_000.0;
/// What one costs the sender and the receiver together at least, s.
const COST_S: f64 = 2e-6;

/// Rates of IPIs.
pub struct IpiStorm;

impl Detector for IpiStorm {
    fn kind(&self) -> &'static str {
        "ipi-storm"
    }

    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = self.asks(view).into_iter().collect();
        if all.is_empty() {
            all.extend(self.of(view));
        }
        all
    }
}

impl IpiStorm {
    /// Threads that have other CPUs run a function, over and over.
    fn asks(&self, view: &View<'_>) -> Option<Candidate> {
        let seconds = view.seconds(view.evidence.span()).filter(|s| *s > 0.0)?;
        let mut by: BTreeMap<(GroupId, Sym), (u64, Option<Sym>, u64)> = BTreeMap::new();
        for ((who, call, function), asked) in &view.evidence.ledger.on_cpus {
            let sum = by.entry((*who, *function)).or_default();
            sum.0 += asked.count;
            if asked.count > sum.2 {
                (sum.1, sum.2) = (*call, asked.count);
            }
        }
        let ((who, function), (count, call, _)) = by.into_iter().max_by_key(|(_, sum)| sum.0)?;
        let rate = count as f64 / seconds;
        if count < LEAST || rate < RATE {
            return None;
        }
        let (threads, name) = (view.threads(who), view.name(function));
        let times = grouped(&count.to_string());
        let inside = call.map_or(String::new(), |call| format!(" in {}", view.name(call)));
        let claim = format!(
            "{threads} interrupts other CPUs {times} times ({} a second){inside} and waits until \
             they have run {name}: at least {} each",
            three_digits(rate),
            view.time(COST_S / view.seconds(1)?)
        );
        let mut chain = vec![Link {
            claim,
            evidence: Evidence {
                count: Some(count),
                figures: [("per_second".to_string(), rate)].into(),
                lost_events: view.lost(function.file),
                ..Evidence::default()
            },
        }];
        let guess = of_function(name).map(|what| format!("about: {what}"));
        chain.extend(guess.map(|claim| Link { claim, ..Link::default() }));
        if !view.evidence.seen(function.file).syscalls {
            let unknown = "not known: in which call (record raw_syscalls:*)";
            chain.push(Link { claim: unknown.into(), ..Link::default() });
        }
        Some(Candidate {
            kind: self.kind(),
            subject: threads.clone(),
            saving: (count as f64 * COST_S / view.seconds(1)?) as u64,
            summary: format!("{threads} has other CPUs run {name} {times} times{inside}"),
            chain,
            suggestion:
                "change more pages a call, or keep the mapping (a pool), so that other CPUs \
                         are interrupted less often"
                    .into(),
            confirm: "perf trace -s -p PID sleep 5; perf stat -e tlb:tlb_flush -a sleep 5".into(),
            at_most: Some(Severity::Low),
            ..Candidate::default()
        })
    }

    fn of(&self, view: &View<'_>) -> Option<Candidate> {
        let seconds = view.seconds(view.evidence.span()).filter(|s| *s > 0.0)?;
        let cpus = view.evidence.cpus_seen.len().max(1) as f64;
        let sent: u64 = view.evidence.ipis.values().sum();
        let rate = sent as f64 / seconds;
        if rate / cpus < STORM {
            return None;
        }
        let (sym, most) = view.evidence.ipis.iter().max_by_key(|(sym, count)| (**count, **sym))?;
        let saving = sent as f64 * COST_S / cpus / view.seconds(1)?;
        let what = view.name(*sym);
        let claim = format!(
            "{} IPIs a second on {cpus} CPUs, {} of them for {what}",
            three_digits(rate),
            brief_percent(*most as f64 / sent.max(1) as f64)
        );
        Some(Candidate {
            kind: self.kind(),
            subject: format!("IPIs ({what})"),
            saving: saving as u64,
            summary: format!("CPUs interrupt each other {} times a second", three_digits(rate)),
            chain: vec![Link {
                claim,
                evidence: Evidence {
                    count: Some(sent),
                    figures: [("per_second".to_string(), rate)].into(),
                    lost_events: view.lost(sym.file),
                    ..Evidence::default()
                },
            }],
            suggestion: "find who sends them (call sites of ipi_send_cpu): wake-ups of idle CPUs, \
                         TLB flushes or work on every CPU"
                .into(),
            confirm: "perf record -e ipi:ipi_send_cpu -ag -- sleep 5 && perf report".into(),
            // A symptom: who sends them and waits is the cause.
            at_most: Some(Severity::Low),
            ..Candidate::default()
        })
    }
}
