//! Waits for locks of the kernel, as its own events have them, beside whatever else their threads do.

use super::habits::link;
use super::story::a;
use super::{Candidate, View};
use crate::evidence::calls::Contended;
use crate::evidence::groups::GroupId;
use crate::moment::Sym;
use crate::result::Severity;
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped};
use vmeter_trace::ops::Lock;

/// Share of the traced time, and waits, from which they are told of.
const SHARE: f64 = 0.1;
const LEAST: u64 = 3;
/// Calls that change a process's mappings, under mmap_lock; a page fault is in none.
const MAPPINGS: [&str; 6] = ["mmap", "munmap", "mprotect", "madvise", "mremap", "brk"];

/// Threads of a name that wait for locks that sleep, and who lets them go on.
pub fn contended(view: &View<'_>, told: &[Candidate]) -> Vec<Candidate> {
    let mut all: BTreeMap<(GroupId, Lock, GroupId), Contended> = BTreeMap::new();
    let mut inside: BTreeMap<(GroupId, Lock, GroupId), Option<Sym>> = BTreeMap::new();
    for ((who, call, kind, holder), waits) in &view.evidence.ledger.locks {
        let Some(holder) = holder.filter(|_| !matches!(kind, Lock::Spinlock | Lock::Rwlock)) else {
            continue;
        };
        let key = (*who, *kind, holder);
        let sum = all.entry(key).or_default();
        sum.count += waits.count;
        sum.ticks = sum.ticks.saturating_add(waits.ticks);
        if waits.worst.map(|(ticks, _)| ticks) > sum.worst.map(|(ticks, _)| ticks) {
            sum.worst = waits.worst;
            inside.insert(key, *call);
        }
    }
    let much = all.into_iter().filter(|((who, ..), waits)| {
        let name = view.threads(*who);
        waits.count >= LEAST
            && view.share(waits.ticks) >= SHARE
            && !view.evidence.groups.is_kernel(*who)
            && !told.iter().any(|told| told.kind == "lock-wait" && told.summary.contains(&name))
    });
    much.map(|(key, waits)| candidate(view, key, inside.get(&key).copied().flatten(), waits))
        .collect()
}

fn candidate(
    view: &View<'_>,
    (who, kind, holder): (GroupId, Lock, GroupId),
    call: Option<Sym>,
    waits: Contended,
) -> Candidate {
    // One that does not wait itself.
    let ends = |call: Option<Sym>| call.is_some_and(|call| !super::waits::waits(view.name(call)));
    let lets_go = view.evidence.ledger.let_go(holder, who, ends).map(|call| view.name(call));
    let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
    let calls = view.evidence.seen(file).syscalls;
    let mapping = call.map_or(calls, |call| MAPPINGS.contains(&view.name(call)));
    let name = if mapping { " (mmap_lock, it seems)" } else { "" };
    let within = match call {
        Some(call) => format!(" in {}", view.name(call)),
        None if calls => " in page faults".into(),
        None => String::new(),
    };
    let while_in = lets_go.map_or(String::new(), |call| format!(" in {call}"));
    let (own, other) = (view.threads(who), view.threads(holder));
    let claim = format!(
        "contention_begin to contention_end: {own} waits {} times, {} in all, {} of the traced \
         time, until {other} lets go",
        grouped(&waits.count.to_string()),
        view.time(waits.ticks as f64),
        brief_percent(view.share(waits.ticks))
    );
    Candidate {
        kind: "lock-wait",
        subject: own.clone(),
        whose: Some(who),
        saving: waits.ticks,
        summary: format!("{own} waits{within} for {}{name} that {other} holds{while_in}", a(kind)),
        chain: vec![link(view, file, claim, waits.count, waits.ticks, waits.worst)],
        suggestion: match lets_go {
            Some("clone" | "clone3" | "fork") => {
                "do not fork a large process: vfork, posix_spawn, or a small helper that forks"
                    .into()
            }
            _ => "hold the lock for less, or do what takes it from another process".to_string(),
        },
        confirm: "perf lock record -a -- sleep 5 && perf lock contention".into(),
        foreign: view.is_foreign(who),
        at_most: Some(if view.is_foreign(who) { Severity::Low } else { Severity::Medium }),
        ..Candidate::default()
    }
}
