//! Whose time `--comm` asks for: threads by their names, and those that belong to them.

use super::View;
use crate::evidence::groups::GroupId;
use crate::moment::{Sym, Tid};
use std::collections::BTreeSet;

/// Longest name that the kernel keeps of a thread, bytes.
pub const LONGEST: usize = 15;
/// Wake-ups in a futex from which two are threads of one process: they have its memory in common.
const SHARED: u64 = 3;

/// Threads that are asked about.
#[derive(Debug, Default)]
pub struct CommFilter {
    /// Those that are called so.
    pub called: BTreeSet<GroupId>,
    /// These, the others of their processes, what they are called later, and what they start.
    pub own: BTreeSet<GroupId>,
    /// Those that wake them or are woken by them, and those that the same have started.
    pub near: BTreeSet<GroupId>,
}

impl CommFilter {
    /// Threads that a pattern of `--comm` fits, with those that belong to them.
    pub fn by_name(view: &View<'_>, pattern: &str) -> CommFilter {
        let evidence = view.evidence;
        let groups = &evidence.groups;
        let names: Vec<&str> = pattern.split('|').map(str::trim).collect();
        let is_called = |group: &GroupId| names.iter().any(|name| fits(view, *group, name));
        let called: BTreeSet<GroupId> = groups.all().filter(is_called).collect();
        let mut own = called.clone();
        // Other programs have threads of the same names: who belongs to whom goes by the thread.
        let mut threads = threads_of(view, &own);
        let mut grows = !own.is_empty();
        while grows {
            let before = (own.len(), threads.len());
            threads.extend(share_memory(view, &threads));
            own.extend(threads.iter().filter_map(|thread| groups.group_of(*thread)));
            let more: BTreeSet<GroupId> =
                started_by(view, &own).chain(groups.once_of(&own)).collect();
            threads.extend(threads_of(view, &more));
            own.extend(more);
            grows = (own.len(), threads.len()) > before;
        }
        let makers = own.iter().filter_map(|group| evidence.maker(*group)).collect();
        let mut near: BTreeSet<GroupId> = started_by(view, &makers).collect();
        let group = |tid: &Tid| groups.group_of(*tid);
        for (by, woken) in evidence.wakes.keys() {
            let (by, woken) = (group(by), group(woken));
            near.extend(woken.filter(|_| by.is_some_and(|by| own.contains(&by))));
            near.extend(by.filter(|_| woken.is_some_and(|woken| own.contains(&woken))));
        }
        if !evidence.seen_anywhere().wakes && !evidence.only_calls() {
            // Whom they wait for is not known: anybody.
            near.extend(groups.all());
        }
        near.retain(|group| !groups.is_kernel(*group) && !own.contains(group));
        CommFilter { called, own, near }
    }
}

/// Threads that some have started.
fn started_by<'a>(
    view: &'a View<'_>,
    makers: &'a BTreeSet<GroupId>,
) -> impl Iterator<Item = GroupId> + 'a {
    let evidence = view.evidence;
    let made = move |group: &GroupId| evidence.maker(*group).is_some_and(|by| makers.contains(&by));
    evidence.groups.all().filter(made)
}

/// The threads of some names that wake others or are woken.
fn threads_of(view: &View<'_>, names: &BTreeSet<GroupId>) -> BTreeSet<Tid> {
    let groups = &view.evidence.groups;
    let pairs = view.evidence.wakes.keys().flat_map(|(by, woken)| [*by, *woken]);
    pairs.filter(|tid| groups.group_of(*tid).is_some_and(|own| names.contains(&own))).collect()
}

/// Who wakes those, or is woken by them, in a futex: the threads of their processes.
fn share_memory(view: &View<'_>, own: &BTreeSet<Tid>) -> Vec<Tid> {
    let futex = |call: Sym| view.name(call).starts_with("futex");
    let calls = view.evidence.ledger.wakes.iter();
    let calls = calls.filter(|((_, call, _), all)| all.wakes >= SHARED && call.is_some_and(futex));
    let names: BTreeSet<(GroupId, GroupId)> = calls.map(|((by, _, who), _)| (*by, *who)).collect();
    let group = |tid: &Tid| view.evidence.groups.group_of(*tid);
    let pairs = view.evidence.wakes.keys().filter(|(by, woken)| {
        group(by).zip(group(woken)).is_some_and(|names_of| names.contains(&names_of))
    });
    let other = pairs.filter_map(|(by, woken)| match (own.contains(by), own.contains(woken)) {
        (true, false) => Some(*woken),
        (false, true) => Some(*by),
        _ => None,
    });
    other.collect()
}

/// True if threads are called so, whatever their numbers, or go on after that with no letter.
fn fits(view: &View<'_>, group: GroupId, name: &str) -> bool {
    let groups = &view.evidence.groups;
    let known = [groups.name(group), groups.common(group)];
    let longest = name.char_indices().map(|(at, _)| at).find(|at| *at >= LONGEST);
    let cut = &name[..longest.unwrap_or(name.len())];
    let begins = |known: &str| {
        let rest = known.strip_prefix(cut).filter(|_| !cut.is_empty());
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
    };
    match name.contains('*') {
        true => known.iter().any(|known| like(known, name)),
        false => groups.has_name(group, cut) || known.iter().any(|known| begins(known)),
    }
}

/// True if a text fits a pattern in which `*` stands for any text.
fn like(text: &str, pattern: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(text) = text.strip_prefix(begin) else { return false };
    let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.any(|at| like(&text[at..], rest))
}

#[cfg(test)]
mod tests {
    use super::like;

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(like("php-fpm: pool www", "php*www") && like("io-3", "io-*") && like("io", "*"));
        assert!(!like("php-fpm: pool", "php*www") && !like("io", "io-*"));
    }
}
