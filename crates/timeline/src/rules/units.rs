//! systemd's units by what it says of them: from `Starting X` to `Finished X`, or
//! to whatever else ends that: it failed, timed out, was stopped.
//!
//! systemd starts whatever can be started, and then hears what ended: what it says first after
//! something ended could not start before. So the tree holds the chain that the ready point
//! (or the default target) waited for: the unit that came last before it, the one that this
//! one had waited for, and so on. Which a unit waits for its own files say, where the guest's
//! page cache had them (`orders`), else what is known of systemd's own units (`ordering`), else
//! the last is taken. Between two, systemd starts jobs. Units that
//! nothing waited for are beside the tree.
//!
//! Where a run ends at a line that is neither a prompt's nor the kernel's, and a unit was still
//! starting that can have printed it (`silent`), that one is what the end waited for; of several,
//! the one that began last or another. If none was, it is the last such unit that was there.
//!
//! Lines come through the kernel's log with the whole name, early or where systemd is told to
//! (`systemd.log_target=kmsg`), else on the console, where a name may be cut in its middle.

use super::builtin_units::comes_after;
use super::processes::last_first;
use super::silent::may_print;
use super::stages::{INITRD, INITRD_UNITS, SYSTEMD, UNITS};
use super::verbs::Verb::{Begins, Ends, Fails, Lapses, Stopped, Stops};
use super::verbs::{is_device, said, same, status, Verb, CUT, STATUS};
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchor, Anchors, Stamp};
use crate::facts::RunIndex;
use crate::is_login;
use crate::lines::Line;
use crate::patterns::On;
use crate::systemd::{can_be_logged, stamps, SAYS};
use crate::tree::{Growing, Node};
use crate::unit_files::Orders;
use vmeter_model::kernel_log::split_stamp;
use vmeter_model::{EventKind, Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

const UNIT: &str = Kind::Unit.word();
/// systemd at work between the end of one unit and the start of those that waited for it.
const START_JOBS: &str = "systemd:start-jobs";
/// systemd lets `RestartSec=` pass before it starts a unit again that failed.
const RESTART: &str = "systemd:restart-wait";
/// More units at once than any boot starts.
const MAX_OPEN: usize = 512;
/// From a process of the unit to the line that it begins, at most, ns.
const SAYS_WITHIN_NS: Ns = 2_000_000_000;
/// What systemd was seen to need for a fork on a guest by TCG with a load, ns.
const FORKS_WITHIN_NS: Ns = 500_000_000;
/// systemd was seen to be busy for so long on a guest by TCG with a load, and then did something
/// that can be seen: what has no sign of it for longer is not its work, ns.
const SILENT_NS: Ns = 3_000_000_000;
/// What another unit's failure starts (`OnFailure=` of local-fs.target and others).
const ON_FAILURE: &[&str] =
    &["emergency.service", "rescue.service", "Emergency Shell", "Rescue Shell"];
/// A gap as short as this needs no sign of systemd's work, ns.
const SHORT_NS: Ns = 20_000_000;

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    // What goes down cancels what it had not finished.
    let ends = |to: Ns| {
        let ended = [Anchor::Panic, Anchor::Shutdown].into_iter().filter_map(|a| anchors.get(a));
        facts.goes_on && !ended.into_iter().any(|end| end.at <= to)
    };
    // An initrd may have a systemd of its own, with units of its own.
    for (stage, part) in [(INITRD, INITRD_UNITS), (SYSTEMD, UNITS)] {
        let systemd = tree.root.children.iter().find(|n| n.name == stage);
        let Some((from, to)) = systemd.map(|n| (n.start, n.end)) else { continue };
        let starts = systemd.and_then(|n| n.children.iter().find(|c| c.name == part));
        match (starts.map(|n| (n.start, n.end)), stage) {
            (Some((begin, end)), INITRD) => {
                let cut = systemd_is_last(tree, stage) && ends(end);
                of_stage(facts, tree, (from, begin, end), cut);
            }
            (begin, SYSTEMD) => {
                let begin = begin.map_or(from, |b| b.0);
                of_stage(facts, tree, (from, begin, to), ends(to));
            }
            _ => {}
        }
    }
}

/// True if no other systemd began after this one.
fn systemd_is_last(tree: &Growing<'_>, stage: &str) -> bool {
    stage == SYSTEMD || tree.root.children.iter().all(|n| n.name != SYSTEMD)
}

/// The units of one systemd, that says something from `from` on, and starts them from `begin`;
/// with `cut`, the run ended while it did.
fn of_stage<'a>(
    facts: &RunIndex<'a>,
    tree: &mut Growing<'a>,
    (from, begin, to): (Ns, Ns, Ns),
    cut: bool,
) {
    let units = units(facts, from, to, cut);
    let (until, goal) = goal(facts, &units, from, to);
    let line = facts.seen.iter().any(|s| matches!(s.what, EventKind::ReadyLine { .. }));
    let mut chain = chain(&units, goal, &facts.orders);
    chain.extend(later(&units, goal.filter(|_| !line), to));
    let mut at = begin;
    for index in &chain {
        let unit = &units[*index];
        let Some(start) = unit.start else { continue };
        match try_before(&units, *index).filter(|before| chain.contains(before)) {
            Some(_) => restart(tree, (at, start)),
            None => start_jobs(facts, tree, &units, (at, start.at)),
        }
        let whole = node(facts, unit, start, since(&units, *index, from));
        let name = or_others(&units, *index, line).unwrap_or_else(|| whole.name.clone());
        if name != whole.name {
            tree.beside.push(whole.clone());
        }
        tree.place(Node { name, ..whole });
        at = unit.end.at;
    }
    if let Some(last) = goal.map(|index| &units[index]) {
        start_jobs(facts, tree, &units, (at, last.end.at));
        let prompts = last.name.contains("getty@") || ON_FAILURE.contains(&last.name);
        if prompts && last.end.at < until {
            let prompt =
                Node::new(format!("{UNIT}{}", last.name), last.end.at, until, last.end.source);
            tree.place(Node { error: last.end.error, ..prompt });
        }
    }
    for (index, unit) in units.iter().enumerate() {
        if let Some(start) = unit.start.filter(|_| !chain.contains(&index)) {
            tree.beside.push(node(facts, unit, start, since(&units, index, from)));
        }
    }
}

/// Of several units that had not ended, nobody knows which it was that the end waited for.
fn or_others(units: &[Unit<'_>], goal: usize, line: bool) -> Option<String> {
    let unit = &units[goal];
    let others = units.iter().enumerate();
    let mut others = others.filter(|(index, other)| *index != goal && can_be(other, line));
    let (_, first) = others.next().filter(|_| unit.unfinished)?;
    Some(match others.count() {
        0 => format!("{UNIT}{} or {}", unit.name, first.name),
        more => format!("{UNIT}{} or {} others", unit.name, more + 1),
    })
}

/// A line that systemd, or who answers for it, says of a unit; in order of time.
pub(super) fn sayings<'a>(
    facts: &RunIndex<'a>,
    from: Ns,
    to: Ns,
) -> Vec<(Stamp<'a>, Verb, &'a str)> {
    if !facts.systemd {
        return Vec::new();
    }
    // In the kernel's log, only who begins the line so is systemd; and nowhere else.
    let stamps = stamps(&facts.lines);
    let its = |l: &&Line<'a>| {
        let own = l.console && l.stamp.is_none() && !l.early;
        let said = match l.text.starts_with(SAYS) {
            true => can_be_logged(l, stamps),
            false => own,
        };
        l.on == On::Kernel && l.timed && said
    };
    let lines = facts.lines.iter().filter(its).filter(|l| (from..to).contains(&l.at));
    let mut sayings: Vec<_> = lines
        .filter_map(|l| {
            let (verb, name) = said(l.text)?;
            let begins = status(l.text).map_or(0, |after| after - STATUS);
            let at = l.at_of(begins);
            Some((Stamp { at, error: l.error, source: l.source }, verb, name))
        })
        .collect();
    sayings.sort_by_key(|(stamp, ..)| stamp.at);
    if !facts.processes.with_parents {
        // It forks before it says so: since its last word, as far as is known.
        let mut before = from;
        for (stamp, verb, _) in &mut sayings {
            let gap = (stamp.at - before).clamp(0, FORKS_WITHIN_NS);
            before = stamp.at;
            if *verb == Begins {
                stamp.error = stamp.error.max(gap);
            }
        }
    }
    sayings
}

/// A unit that was started.
#[derive(Debug)]
struct Unit<'a> {
    name: &'a str,
    /// None for what was there at once.
    start: Option<Stamp<'a>>,
    end: Stamp<'a>,
    /// True if it had not ended when the run did.
    unfinished: bool,
    /// True if its time was up.
    lapsed: bool,
    /// True if systemd said that it failed.
    failed: bool,
}

impl<'a> Unit<'a> {
    /// One that was there at once.
    fn there(name: &'a str, end: Stamp<'a>) -> Self {
        Unit { name, start: None, end, unfinished: false, lapsed: false, failed: false }
    }

    /// The name of its span.
    fn span(&self) -> String {
        let (kind, timed_out) = (Kind::Unit, self.lapsed);
        Identity { kind, name: self.name, timed_out, unfinished: false }.to_string()
    }
}

/// What was started, in order of its end or of when nobody waited for it any more, and with `cut` what was still starting. Each is said
/// twice where systemd speaks to the kernel's log and the console: the first counts.
fn units<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns, cut: bool) -> Vec<Unit<'a>> {
    let mut open: Vec<(&str, Stamp<'a>)> = Vec::new();
    let mut units: Vec<Unit<'a>> = Vec::new();
    let mut found = Vec::new();
    // What ends with the stage may be said as the next one's first word is.
    for (stamp, verb, name) in sayings(facts, from, to.saturating_add(1)) {
        let known = open.iter().position(|(of, _)| same(of, name));
        match (verb, known) {
            (Begins, None) if open.len() < MAX_OPEN => open.push((name, stamp)),
            (Begins, Some(at)) if open[at].0.contains(CUT) => open[at].0 = name,
            (Ends | Fails | Lapses | Stops | Stopped, Some(at)) => {
                let (begun, start) = open.remove(at);
                let better = begun.contains(CUT) && !name.contains(CUT);
                let name = if better { name } else { begun };
                if verb == Ends && is_device(name) {
                    found.push(units.len());
                }
                let (start, lapsed, failed) = (Some(start), verb == Lapses, verb == Fails);
                units.push(Unit { start, lapsed, failed, ..Unit::there(name, stamp) });
            }
            (Ends | Fails, None) => match units.iter_mut().find(|unit| same(unit.name, name)) {
                Some(unit) if unit.name.contains(CUT) => unit.name = name,
                Some(_) => {}
                None => units.push(Unit::there(name, stamp)),
            },
            _ => {}
        }
    }
    if cut {
        found.extend(units.len()..units.len() + open.len());
        open.sort_by_key(|(_, start)| start.at);
        units.extend(open.into_iter().map(|(name, start)| {
            let end = Stamp { at: to, error: 0, ..start };
            Unit { start: Some(start), unfinished: true, ..Unit::there(name, end) }
        }));
    }
    devices(&mut units, &found);
    units
}

/// Who makes devices known.
const COLDPLUG: &[&str] = &["systemd-udevd.service", "systemd-udev-trigger.service"];

/// systemd expects a device from the start; what it waited for before udev was told of the
/// devices is who tells it. One that it gave up had its time from the start.
fn devices(units: &mut [Unit<'_>], found: &[usize]) {
    for &index in found {
        let (before, rest) = units.split_at_mut(index);
        let device = &mut rest[0];
        let told = before.iter().rfind(|unit| COLDPLUG.contains(&unit.name));
        if let (true, Some(start), Some(told)) = (is_device(device.name), device.start, told) {
            device.start = Some(if told.end.at > start.at { told.end } else { start });
        }
    }
}

/// The first line of a unit.
pub(super) fn first<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Option<Stamp<'a>> {
    sayings(facts, from, to).first().map(|(stamp, ..)| *stamp)
}

/// What the end of the boot waited for, and until when: the prompt, where that is the ready
/// point; the default target; or whatever came last.
fn goal(facts: &RunIndex<'_>, units: &[Unit<'_>], from: Ns, to: Ns) -> (Ns, Option<usize>) {
    let ready = facts.seen.iter().find_map(|s| match s.what {
        EventKind::ReadyLine { text } if from <= s.at && s.at <= to => {
            Some((s.at.min(to), text.as_str()))
        }
        _ => None,
    });
    let default = facts.lines.iter().filter(|l| (from..to).contains(&l.at)).find_map(|l| {
        let rest =
            l.text.strip_prefix(SAYS)?.strip_prefix("Queued start job for default target ")?;
        Some(rest.trim_end_matches('.'))
    });
    let named =
        |name: &str| units.iter().position(|unit| !unit.unfinished && same(unit.name, name));
    let default = default.and_then(named).filter(|_| ready.is_none());
    if let Some(index) = default {
        return (units[index].end.at, Some(index));
    }
    let (until, line) = ready.unwrap_or((to, ""));
    let came = |unit: &Unit<'_>| unit.end.at <= until && !unit.unfinished;
    if is_login(line.trim_end()) {
        let prompts = |unit: &Unit<'_>| came(unit) && unit.name.contains("getty@");
        let getty = units.iter().rposition(prompts);
        return (until, getty.or_else(|| units.iter().rposition(came)));
    }
    let (stamp, text) = split_stamp(line);
    // The line says itself what was there by then.
    let ends = |verb: &Verb| matches!(verb, Ends | Fails);
    let says = said(text).filter(|(verb, _)| ends(verb)).and_then(|(_, name)| named(name));
    let starting = || units.iter().rposition(|unit| can_be(unit, ready.is_some()));
    let device = || units.iter().rposition(|unit| unit.unfinished && ready.is_none());
    // What the kernel says is no unit's.
    let starting = || starting().or_else(device).filter(|_| stamp.is_none());
    let own = |unit: &Unit<'_>| came(unit) && may_print(unit.name);
    let own = || units.iter().rposition(own).filter(|_| ready.is_some() && stamp.is_none());
    let last = || units.iter().rposition(came);
    (until, says.or_else(starting).or_else(own).or_else(last))
}

/// True for a unit that had not ended and can be what the end waited for: where that is a
/// `line`, one that may have printed it.
fn can_be(unit: &Unit<'_>, line: bool) -> bool {
    unit.unfinished && !is_device(unit.name) && (!line || may_print(unit.name))
}

/// The units that led to `goal`, in order of time.
fn chain(units: &[Unit<'_>], goal: Option<usize>, orders: &Orders<'_>) -> Vec<usize> {
    let mut chain = Vec::new();
    let mut next = goal;
    while let Some(index) = next {
        chain.push(index);
        let unit = &units[index];
        let at = unit.start.map_or(unit.end.at, |start| start.at);
        // In order of their ends: whatever is chosen is earlier in the list.
        let before = units[..index].iter().take_while(|other| other.end.at <= at).count();
        // One that was tried again was waited for until its last try.
        let named = |name: &str| {
            let its = |unit: &Unit<'_>| same(unit.name, name);
            units[..before].iter().rposition(its).or_else(|| units.iter().position(its))
        };
        if let Some(tried) = try_before(units, index) {
            next = Some(tried);
            continue;
        }
        if ON_FAILURE.contains(&unit.name) {
            let gone = units[..before].iter().rposition(|unit| unit.lapsed || unit.failed);
            if gone.is_some() {
                next = gone;
                continue;
            }
        }
        next = match orders.waited_for(unit.name, named) {
            Some(waited_for) => waited_for.into_iter().filter(|other| *other < before).max(),
            None => {
                let after = |u: &Unit<'_>| comes_after(unit.name, u.name) == Some(true);
                units[..before].iter().rposition(after).or(before.checked_sub(1))
            }
        };
    }
    chain.reverse();
    chain
}

/// What began after the goal was there, of a boot that went on to the end of its stage.
fn later(units: &[Unit<'_>], goal: Option<usize>, to: Ns) -> Vec<usize> {
    let Some(from) = goal.map(|goal| units[goal].end.at) else { return Vec::new() };
    let spans = units.iter().enumerate().filter(|(_, unit)| !unit.unfinished);
    let spans = spans.filter_map(|(index, unit)| Some((unit.start?.at, unit.end.at, index)));
    last_first(spans.filter(|(start, end, _)| from <= *start && start < end).collect(), to)
}

/// The try of the same unit that had ended before this one began (`Restart=`).
fn try_before(units: &[Unit<'_>], index: usize) -> Option<usize> {
    let unit = &units[index];
    let start = unit.start?.at;
    units[..index]
        .iter()
        .rposition(|u| u.name == unit.name && u.start.is_some() && u.end.at <= start)
}

/// From when on the time of a unit's processes is this try's.
fn since(units: &[Unit<'_>], index: usize, from: Ns) -> Ns {
    try_before(units, index).map_or(from, |before| units[before].end.at)
}

/// From the failure of a unit to its next try.
fn restart<'a>(tree: &mut Growing<'a>, (from, to): (Ns, Stamp<'a>)) {
    if from < to.at {
        tree.place(Node { error: to.error, ..Node::new(RESTART, from, to.at, to.source) });
    }
}

/// A unit's span. It began to start between its first process and the line that says so.
fn node<'a>(facts: &RunIndex<'a>, unit: &Unit<'a>, start: Stamp<'a>, since: Ns) -> Node<'a> {
    let processes = &facts.processes;
    let of_it = processes.all.iter().filter(|p| p.unit == Some(unit.name));
    let began = of_it.filter_map(|p| p.joined).filter(|at| *at <= start.at).max();
    let late = began.map_or(0, |at| start.at - at);
    let late = if late < SAYS_WITHIN_NS { late } else { 0 };
    let node = Node::new(unit.span(), start.at, unit.end.at, start.source);
    let error = start.error.max(unit.end.error).max(late);
    let cpu = processes.cpu_of_unit(unit.name, since, unit.end.at);
    Node { error, cpu, unfinished: unit.unfinished, ..node }
}

/// For how long of a stretch a unit is being started, ns.
fn under_way(units: &[Unit<'_>], from: Ns, to: Ns) -> Ns {
    let inside = |unit: &Unit<'_>| Some((unit.start?.at.max(from), unit.end.at.min(to)));
    let mut spans: Vec<(Ns, Ns)> = units.iter().filter_map(inside).filter(|s| s.0 < s.1).collect();
    spans.sort_unstable();
    let (mut sum, mut until) = (0, from);
    for (start, end) in spans {
        sum += (end - start.max(until)).max(0);
        until = until.max(end);
    }
    sum
}

/// Names a gap between two units of the chain, where systemd is seen at work.
fn start_jobs<'a>(
    facts: &RunIndex<'a>,
    tree: &mut Growing<'a>,
    units: &[Unit<'a>],
    (from, to): (Ns, Ns),
) {
    // While units run, systemd has started them.
    if from >= to || to - from > SHORT_NS && under_way(units, from, to) * 2 > to - from {
        return;
    }
    let said = || units.iter().flat_map(|u| u.start.into_iter().chain([u.end]));
    let by = said().find(|stamp| from < stamp.at && stamp.at <= to);
    let of_init = |parent: usize| facts.processes.all[parent].pid == 1;
    let forks = facts.processes.all.iter().filter(|p| p.parent.is_some_and(of_init));
    let forks: Vec<Ns> = forks.map(|p| p.start.at).filter(|at| (from..=to).contains(at)).collect();
    let works = to - from <= SHORT_NS || !forks.is_empty();
    let says = units.iter().filter_map(|u| u.start).any(|s| from < s.at && s.at < to);
    let mut signs: Vec<Ns> = forks.into_iter().chain(said().map(|stamp| stamp.at)).collect();
    signs.retain(|at| from < *at && *at < to);
    signs.extend([from, to]);
    signs.sort_unstable();
    if signs.windows(2).any(|pair| pair[1] - pair[0] > SILENT_NS) {
        return;
    }
    if let Some(by) = by.filter(|_| works || says) {
        tree.place(Node { error: by.error, ..Node::new(START_JOBS, from, to, by.source) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::UnitFile;

    #[test]
    fn a_unit_that_is_tried_again_is_waited_for_to_its_last_try() {
        let stamp = |at| Stamp { at, error: 0, source: "t" };
        let unit = |name, start: Ns, end| Unit {
            name,
            start: Some(stamp(start)),
            end: stamp(end),
            ..Unit::there(name, stamp(end))
        };
        let units = [
            unit("slow.service", 0, 10),
            unit("flaky.service", 12, 20),
            unit("flaky.service", 25, 40),
            unit("other.service", 12, 50),
            unit("flaky.service", 45, 80),
            unit("mine.service", 81, 90),
        ];
        let file = |name: &str, after: &[&str]| UnitFile {
            name: name.into(),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            ..UnitFile::default()
        };
        let files = [
            file("mine.service", &["flaky.service", "other.service"]),
            file("flaky.service", &["slow.service"]),
        ];
        let files: Vec<&UnitFile> = files.iter().collect();
        let orders = Orders::of_files(&files, std::iter::empty());
        assert_eq!(chain(&units, Some(5), &orders), [0, 1, 2, 4, 5]);
        assert_eq!(chain(&units, Some(5), &Orders::default()), [0, 1, 2, 4, 5]);
        assert_eq!((since(&units, 1, 3), since(&units, 4, 3)), (3, 40));
    }

    #[test]
    fn a_chain_goes_by_what_each_waited_for() {
        let stamp = |at| Stamp { at, error: 0, source: "t" };
        let unit = |name, start: Option<Ns>, end| Unit {
            start: start.map(stamp),
            ..Unit::there(name, stamp(end))
        };
        let units = [
            unit("systemd-fsck-root.service", Some(0), 20),
            unit("other.service", Some(1), 21),
            unit("systemd-remount-fs.service", Some(30), 40),
            unit("slow.service", Some(5), 90),
            unit("mine.service", Some(41), 95),
        ];
        let unknown = Orders::default();
        assert_eq!(chain(&units, Some(4), &unknown), [0, 2, 4]);
        assert_eq!(chain(&units, None, &unknown), Vec::<usize>::new());
        // Its own file says otherwise: a slow unit that ended just before is none of it.
        let file = |name: &str, after: &[&str]| UnitFile {
            name: name.into(),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            ..UnitFile::default()
        };
        let mine = [file("mine.service", &["hidden.target"])];
        let hidden = file("hidden.target", &["other.service"]);
        let files: Vec<&UnitFile> = mine.iter().chain([&hidden]).collect();
        let orders = Orders::of_files(&files, std::iter::empty());
        assert_eq!(chain(&units, Some(4), &orders), [1, 4]);
    }
}
