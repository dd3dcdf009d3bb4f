//! systemd's units by what it says of them: from `Starting X` to `Finished X`.
//!
//! systemd starts whatever can be started, and then hears what ended: what it says first after
//! something ended could not start before. So the tree holds the chain that the ready point
//! (or the default target) waited for: the unit that came last before it, the one that this
//! one had waited for, and so on. Which a unit waits for its own files say, where the guest's
//! page cache had them (`orders`), else what is known of systemd's own units (`ordering`), else
//! the last is taken. Between two, systemd starts jobs. Units that
//! nothing waited for are beside the tree.
//!
//! Lines come through the kernel's log with the whole name, early or where systemd is told to
//! (`systemd.log_target=kmsg`), else on the console, where a name may be cut in its middle.

use super::ordering::comes_after;
use super::stages::{INITRD, INITRD_UNITS, SAYS, SYSTEMD, UNITS};
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchors, Stamp};
use crate::facts::Facts;
use crate::lines::Line;
use crate::orders::Orders;
use crate::patterns::On;
use crate::tree::{Growing, Node};
use vmeter_model::{Ns, What};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// What the names of units' spans begin with.
pub(super) const UNIT: &str = "unit ";
/// systemd at work between the end of one unit and the start of those that waited for it.
const START_JOBS: &str = "systemd:start-jobs";
/// More units at once than any boot starts.
const MAX_OPEN: usize = 512;
/// Where systemd leaves out the middle of a name.
const CUT: char = '\u{2026}';
/// From a process of the unit to the line that it begins, at most, ns.
const SAYS_WITHIN_NS: Ns = 2_000_000_000;
/// What systemd was seen to need for a fork on a guest by TCG with a load, ns.
const FORKS_WITHIN_NS: Ns = 500_000_000;
/// A gap as short as this needs no sign of systemd's work, ns.
const SHORT_NS: Ns = 20_000_000;

fn spans<'a>(facts: &Facts<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    // An initrd may have a systemd of its own, with units of its own.
    for (stage, part) in [(INITRD, INITRD_UNITS), (SYSTEMD, UNITS)] {
        let systemd = tree.root.children.iter().find(|n| n.name == stage);
        let Some((from, to)) = systemd.map(|n| (n.start, n.end)) else { continue };
        let starts = systemd.and_then(|n| n.children.iter().find(|c| c.name == part));
        match (starts.map(|n| (n.start, n.end)), stage) {
            (Some((begin, end)), INITRD) => of_stage(facts, tree, (from, begin, end)),
            (begin, SYSTEMD) => of_stage(facts, tree, (from, begin.map_or(from, |b| b.0), to)),
            _ => {}
        }
    }
}

/// The units of one systemd, that says something from `from` on, and starts them from `begin`.
fn of_stage<'a>(facts: &Facts<'a>, tree: &mut Growing<'a>, (from, begin, to): (Ns, Ns, Ns)) {
    let units = units(facts, from, to);
    let (until, goal) = goal(facts, &units, from, to);
    let chain = chain(&units, goal, &facts.orders);
    let mut at = begin;
    for index in &chain {
        let unit = &units[*index];
        let Some(start) = unit.start else { continue };
        start_jobs(facts, tree, &units, (at, start.at));
        tree.place(node(facts, unit, start, from));
        at = unit.end.at;
    }
    if let Some(last) = goal.map(|index| &units[index]) {
        start_jobs(facts, tree, &units, (at, last.end.at));
        if last.name.contains("getty@") && last.end.at < until {
            let prompt =
                Node::new(format!("{UNIT}{}", last.name), last.end.at, until, last.end.source);
            tree.place(Node { error: last.end.error, ..prompt });
        }
    }
    for (index, unit) in units.iter().enumerate() {
        if let Some(start) = unit.start.filter(|_| !chain.contains(&index)) {
            tree.beside.push(node(facts, unit, start, from));
        }
    }
}

/// What is said of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Begins,
    Ends,
    /// It begins to stop.
    Stops,
    Stopped,
}

use Verb::{Begins, Ends, Stopped, Stops};

const VERBS: &[(&str, Verb)] = &[
    ("Starting ", Begins),
    ("Mounting ", Begins),
    ("Activating swap ", Begins),
    ("Expecting device ", Begins),
    ("Started ", Ends),
    ("Finished ", Ends),
    ("Mounted ", Ends),
    ("Activated swap ", Ends),
    ("Reached target ", Ends),
    ("Listening on ", Ends),
    ("Found device ", Ends),
    ("Set up automount ", Ends),
    ("Failed to start ", Ends),
    ("Failed to mount ", Ends),
    ("Stopping ", Stops),
    ("Unmounting ", Stops),
    ("Deactivating swap ", Stops),
    ("Stopped target ", Stopped),
    ("Stopped ", Stopped),
    ("Unmounted ", Stopped),
    ("Deactivated swap ", Stopped),
    ("Unset automount ", Stopped),
    ("Closed ", Stopped),
    ("Removed slice ", Stopped),
];

/// Where a line of the console goes on after systemd's status, which may follow a prompt.
fn status(text: &str) -> Option<usize> {
    ["[  OK  ] ", "[FAILED] ", "[DEPEND] "].iter().find_map(|s| Some(text.find(s)? + s.len()))
}

/// The name and the description of the unit that a line speaks of, where it gives both.
pub(crate) fn described(text: &str) -> Option<(&str, &str)> {
    let (_, name) = said(text)?;
    let (_, rest) = text.split_once(name)?;
    let description = rest.strip_prefix(" - ")?.trim_end().trim_end_matches('.');
    let whole = !description.is_empty() && !text.contains(CUT);
    whole.then_some((name, description))
}

/// The verb and the unit's name in a line.
pub(super) fn said(text: &str) -> Option<(Verb, &str)> {
    let text = text.strip_prefix(SAYS).unwrap_or(text);
    let text = status(text).map_or(text, |at| &text[at..]).trim_start();
    let (verb, rest) = VERBS.iter().find_map(|(v, verb)| Some((*verb, text.strip_prefix(v)?)))?;
    let name = rest.trim_end().trim_end_matches('.');
    let unit = name.split_once(" - ").map(|(unit, _)| unit);
    // Without a name (`systemd.status_unit_format=description`) the description is all there is.
    let whole = |unit: &&str| unit.contains('.') && !unit.contains([' ', CUT]);
    let name = unit.filter(whole).unwrap_or(name);
    (!name.is_empty()).then_some((verb, name))
}

/// True for two texts of one unit, whose middles may have been left out in different places.
pub(super) fn same(a: &str, b: &str) -> bool {
    match (a.split_once(CUT), b.split_once(CUT)) {
        (None, None) => a == b,
        (Some((head, _)), None) => b.starts_with(head.trim_end()) && b.contains('.'),
        (None, Some((head, _))) => a.starts_with(head.trim_end()) && a.contains('.'),
        (Some((head, tail)), Some((other, end))) => {
            (head.starts_with(other) || other.starts_with(head))
                && (tail.ends_with(end) || end.ends_with(tail))
        }
    }
}

/// A line that systemd, or who answers for it, says of a unit; in order of time.
pub(super) fn sayings<'a>(facts: &Facts<'a>, from: Ns, to: Ns) -> Vec<(Stamp<'a>, Verb, &'a str)> {
    // In the kernel's log, only who begins the line so is systemd.
    let its = |l: &&Line<'a>| {
        let own = l.console && l.stamp.is_none() && !l.early;
        l.on == On::Kernel && l.timed && (own || l.text.starts_with(SAYS))
    };
    let lines = facts.lines.iter().filter(its).filter(|l| (from..to).contains(&l.at));
    let mut sayings: Vec<_> = lines
        .filter_map(|l| {
            let (verb, name) = said(l.text)?;
            let late = status(l.text).is_some_and(|at| at > 9);
            let at = if late { l.end } else { l.at };
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
}

/// What was started, in order of its end. Each is said twice where systemd speaks to the
/// kernel's log and the console: the first counts.
fn units<'a>(facts: &Facts<'a>, from: Ns, to: Ns) -> Vec<Unit<'a>> {
    let mut open: Vec<(&str, Stamp<'a>)> = Vec::new();
    let mut units: Vec<Unit<'a>> = Vec::new();
    for (stamp, verb, name) in sayings(facts, from, to) {
        let known = open.iter().position(|(of, _)| same(of, name));
        match (verb, known) {
            (Begins, None) if open.len() < MAX_OPEN => open.push((name, stamp)),
            (Begins, Some(at)) if open[at].0.contains(CUT) => open[at].0 = name,
            (Ends, Some(at)) => {
                let (begun, start) = open.remove(at);
                let better = begun.contains(CUT) && !name.contains(CUT);
                let name = if better { name } else { begun };
                units.push(Unit { name, start: Some(start), end: stamp });
            }
            (Ends, None) => match units.iter_mut().find(|unit| same(unit.name, name)) {
                Some(unit) if unit.name.contains(CUT) => unit.name = name,
                Some(_) => {}
                None => units.push(Unit { name, start: None, end: stamp }),
            },
            _ => {}
        }
    }
    devices(&mut units);
    units
}

/// Who makes devices known.
const COLDPLUG: &[&str] = &["systemd-udevd.service", "systemd-udev-trigger.service"];

/// systemd expects a device from the start; what it waited for before udev was told of the
/// devices is who tells it.
fn devices(units: &mut [Unit<'_>]) {
    for index in 0..units.len() {
        let (before, rest) = units.split_at_mut(index);
        let device = &mut rest[0];
        let told = before.iter().rfind(|unit| COLDPLUG.contains(&unit.name));
        if let (true, Some(start), Some(told)) = (is_device(device.name), device.start, told) {
            device.start = Some(if told.end.at > start.at { told.end } else { start });
        }
    }
}

/// True for a device's unit.
pub(super) fn is_device(unit: &str) -> bool {
    unit.ends_with(".device")
}

/// The first line of a unit.
pub(super) fn first<'a>(facts: &Facts<'a>, from: Ns, to: Ns) -> Option<Stamp<'a>> {
    sayings(facts, from, to).first().map(|(stamp, ..)| *stamp)
}

/// What the end of the boot waited for, and until when: the prompt, where that is the ready
/// point; the default target; or whatever came last.
fn goal(facts: &Facts<'_>, units: &[Unit<'_>], from: Ns, to: Ns) -> (Ns, Option<usize>) {
    let ready = facts.seen.iter().find_map(|s| match s.what {
        What::ReadyLine { text } if from <= s.at && s.at <= to => {
            Some((s.at.min(to), text.contains("login:")))
        }
        _ => None,
    });
    let default = facts.lines.iter().filter(|l| (from..to).contains(&l.at)).find_map(|l| {
        let rest =
            l.text.strip_prefix(SAYS)?.strip_prefix("Queued start job for default target ")?;
        Some(rest.trim_end_matches('.'))
    });
    let named = |name: &str| units.iter().position(|unit| unit.name == name);
    let default = default.and_then(named).filter(|_| ready.is_none());
    if let Some(index) = default {
        return (units[index].end.at, Some(index));
    }
    let (until, prompt) = ready.unwrap_or((to, false));
    let came = |unit: &Unit<'_>| unit.end.at <= until;
    let prompts = |unit: &Unit<'_>| prompt && unit.name.contains("getty@");
    let getty = units.iter().rposition(|unit| came(unit) && prompts(unit));
    (until, getty.or_else(|| units.iter().rposition(came)))
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
        let named = |name: &str| units.iter().position(|unit| same(unit.name, name));
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

/// A unit's span. It began to start between its first process and the line that says so.
fn node<'a>(facts: &Facts<'a>, unit: &Unit<'a>, start: Stamp<'a>, since: Ns) -> Node<'a> {
    let processes = &facts.processes;
    let of_it = processes.all.iter().filter(|p| p.unit == Some(unit.name));
    let began = of_it.filter_map(|p| p.joined).filter(|at| *at <= start.at).max();
    let late = began.map_or(0, |at| start.at - at);
    let late = if late < SAYS_WITHIN_NS { late } else { 0 };
    let node = Node::new(format!("{UNIT}{}", unit.name), start.at, unit.end.at, start.source);
    let error = start.error.max(unit.end.error).max(late);
    let cpu = processes.cpu_of_unit(unit.name, since, unit.end.at);
    Node { error, cpu, ..node }
}

/// Names a gap between two units of the chain, where systemd is seen at work.
fn start_jobs<'a>(
    facts: &Facts<'a>,
    tree: &mut Growing<'a>,
    units: &[Unit<'a>],
    (from, to): (Ns, Ns),
) {
    if from >= to {
        return;
    }
    let inside = |at: Ns| (from..=to).contains(&at);
    let mut said = units.iter().flat_map(|u| u.start.into_iter().chain([u.end]));
    let by = said.find(|stamp| from < stamp.at && stamp.at <= to);
    let of_init = |parent: usize| facts.processes.all[parent].pid == 1;
    let mut forks = facts.processes.all.iter().filter(|p| p.parent.is_some_and(of_init));
    let works = to - from <= SHORT_NS || forks.any(|p| inside(p.start.at));
    let says = units.iter().filter_map(|u| u.start).any(|s| from < s.at && s.at < to);
    if let Some(by) = by.filter(|_| works || says) {
        tree.place(Node { error: by.error, ..Node::new(START_JOBS, from, to, by.source) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::UnitFile;

    #[test]
    fn lines_of_systemd_are_read() {
        for (line, verb, name) in [
            ("systemd[1]: Starting kmod.service - Create List...", Begins, "kmod.service"),
            ("Starting ssh.service - OpenBSD Secure Shell server...", Begins, "ssh.service"),
            ("[  OK  ] Finished a-b.service - Planted.", Ends, "a-b.service"),
            ("[FAILED] Failed to start x.service - X.", Ends, "x.service"),
            ("[  OK  ] Started OpenSSH Daemon.", Ends, "OpenSSH Daemon"),
            ("systemd[1]: Reached target basic.target - Basic System.", Ends, "basic.target"),
            ("Stopping ssh.service - OpenBSD Secure Shell server...", Stops, "ssh.service"),
            ("[  OK  ] Stopped target getty.target - Login Prompts.", Stopped, "getty.target"),
            (
                "Mounting dev-mqueue.mount\u{2026}Queue File System...",
                Begins,
                "dev-mqueue.mount\u{2026}Queue File System",
            ),
        ] {
            assert_eq!(said(line), Some((verb, name)), "{line}");
        }
        assert_eq!(
            said("planted login: [  OK  ] Finished a.service - A."),
            Some((Ends, "a.service"))
        );
        let cut =
            said("[  OK  ] Started timesyncd.\u{2026}0m - Network Time.").map(|(_, name)| name);
        assert!(cut.is_some_and(|cut| same("timesyncd\u{2026} - Network Time", cut)));
        assert_eq!(said("Detected virtualization qemu."), None);
    }

    #[test]
    fn names_that_are_cut_are_matched() {
        assert!(same(
            "systemd-tmp\u{2026}ate Nodes in /dev",
            "systemd-tmpf\u{2026}eate Nodes in /dev"
        ));
        assert!(!same("systemd-tmp\u{2026}ate Nodes in /dev", "systemd-tmp\u{2026}Directories"));
        assert!(same("systemd-udevd.ser\u{2026}ger for Events", "systemd-udevd.service"));
        assert!(same("cron.service \u{2026}round processing", "cron.service"));
        assert!(!same("a.service", "b.service"));
    }

    #[test]
    fn a_chain_goes_by_what_each_waited_for() {
        let stamp = |at| Stamp { at, error: 0, source: "t" };
        let unit =
            |name, start: Option<Ns>, end| Unit { name, start: start.map(stamp), end: stamp(end) };
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
