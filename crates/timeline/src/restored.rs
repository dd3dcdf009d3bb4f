//! The phases of a run that goes on with a guest from a snapshot: from the exec of the VMM to the first
//! answer of a guest that was booted before.
//!
//! The same moments as those of a boot begin it. What the VMM loads comes as turns from one part to the
//! next ([`SnapshotPart`]); a part of which nothing is known is `unattributed`. The vCPUs go on when the VMM
//! says so, or at their first exit.

use crate::anchors::{Anchor, Anchors, Stamp};
use crate::facts::RunIndex;
use crate::rules::RESTORED;
use crate::tree::{Fill, Growing, Node};
use vmeter_model::span::{AFTER, UNATTRIBUTED};
use vmeter_model::time::seconds;
use vmeter_model::{EventKind, Ns, SnapshotPart, Timeline};

/// Loading what is not the guest's RAM.
const LOAD_STATE: &str = "vmm:load-state";
/// Loading the guest's RAM.
const LOAD_RAM: &str = "vmm:load-ram";
/// Loading a file that holds both.
const LOAD: &str = "vmm:load";
/// From the last byte loaded to the first instruction.
const RESUME: &str = "vmm:resume";
/// From there to the guest's answer.
const UNTIL_READY: &str = "guest:until-ready";
/// Unattributed time that is less than this share of the run is not explained.
const WORTH_A_WORD: f64 = 0.01;

/// The anchors of such a run, and its tree.
pub(crate) fn grow<'a>(facts: &RunIndex<'a>) -> (Anchors<'a>, Growing<'a>) {
    let mut root = Node::new("restore", 0, facts.total, "");
    root.fill = Fill::Unattributed;
    let tree = Growing { root, beside: Vec::new(), warnings: Vec::new() };
    let mut path = Path { tree, at: Stamp { at: 0, error: 0, source: "" } };
    let first = |what: &EventKind| facts.first(|w| w == what);
    let wrapper = first(&EventKind::WrapperExec);
    let mut turns = turns(facts, wrapper.map_or(0, |wrapper| wrapper.at));
    // A launcher may load the snapshot itself, and execute who goes on with it.
    let before = turns.first().map_or(facts.total, |turn| turn.stamp.at);
    let early = |stamp: &Stamp<'_>| stamp.at <= before;
    let exec = first(&EventKind::VmmExec).filter(early);
    let main = first(&EventKind::VmmMain).or_else(|| first(&EventKind::VmmEntry)).filter(early);
    let mut anchors = Anchors::default();
    anchors.set(Anchor::ExecDone, exec);
    anchors.set(Anchor::Main, main);
    path.to("vmm:exec", wrapper.or(exec));
    path.to("vmm:wrapper", exec.filter(|_| wrapper.is_some()));
    path.to("vmm:link", main);
    let loads = turns.iter().any(|turn| *turn.part != SnapshotPart::Loaded);
    let from = turns.first().map_or(path.at.at, |turn| turn.stamp.at);
    let runs = runs(facts, if loads { from } else { path.at.at });
    // What a VMM loads once its guest runs, that guest asked for.
    turns.retain(|turn| runs.is_none_or(|runs| turn.stamp.at <= runs.at));
    let named = |name: &'static str| match (main, wrapper) {
        (Some(_), _) => name,
        (None, Some(_)) => "vmm:wrapper",
        (None, None) => UNATTRIBUTED,
    };
    match turns.first().filter(|_| loads) {
        Some(first) => path.to(named("vmm:init"), Some(first.stamp)),
        None => match asked(facts, path.at.at).filter(|_| runs.is_some()) {
            Some(asked) => {
                path.to(named("vmm:init"), Some(asked));
                path.to(named(LOAD), runs);
            }
            None => path.to(named("vmm:init+vmm:load"), runs),
        },
    }
    load(&mut path, &turns, wrapper.is_none());
    let killed = |w: &EventKind| matches!(w, EventKind::VmmExiting | EventKind::VmmKilled);
    let after = runs.map_or(path.at.at, |runs| runs.at);
    let exiting = facts.seen.iter().find(|s| killed(s.what) && s.at >= after).map(Stamp::of);
    let end = exiting.unwrap_or_else(|| facts.end());
    let loaded = turns.last().is_some_and(|turn| *turn.part == SnapshotPart::Loaded);
    match (runs, loaded) {
        (Some(runs), _) => {
            let last = turns.last().and_then(|turn| phase(turn.part)).filter(|_| !loaded);
            let name = last.map_or(RESUME.to_owned(), |last| format!("{last}+{RESUME}"));
            path.to(if turns.is_empty() { UNATTRIBUTED } else { &name }, Some(runs));
            path.to(UNTIL_READY, Some(end));
        }
        (None, true) => path.to(&format!("{RESUME}+{UNTIL_READY}"), Some(end)),
        (None, false) => path.to(UNATTRIBUTED, Some(end)),
    }
    let resumed = first(&EventKind::WrapperResumed).filter(|resumed| resumed.at >= end.at);
    path.to("vmm:exit", exiting.and(Some(resumed.unwrap_or_else(|| facts.end()))));
    path.to(AFTER, resumed.map(|_| facts.end()));
    let mut tree = path.tree;
    tree.beside.extend(launcher(facts));
    for rules in RESTORED {
        (rules.spans)(facts, &anchors, &mut tree);
    }
    (anchors, tree)
}

/// The way from the exec to the end, phase by phase.
struct Path<'a> {
    tree: Growing<'a>,
    /// Where it is.
    at: Stamp<'a>,
}

impl<'a> Path<'a> {
    /// Goes on to a moment, if it is known and lies ahead; the time until then has this name.
    fn to(&mut self, name: &str, end: Option<Stamp<'a>>) {
        let Some(end) = end.filter(|end| end.at >= self.at.at) else { return };
        if end.at > self.at.at && name != UNATTRIBUTED {
            let error = self.at.error.max(end.error);
            let source = if end.source.is_empty() { self.at.source } else { end.source };
            self.tree.place(Node { error, ..Node::new(name, self.at.at, end.at, source) });
        }
        self.at = end;
    }
}

/// The VMM goes on to this part.
struct Turn<'a> {
    stamp: Stamp<'a>,
    part: &'a SnapshotPart,
}

/// The turns of one source, after a moment.
fn turns<'a>(facts: &RunIndex<'a>, after: Ns) -> Vec<Turn<'a>> {
    let all = facts.seen.iter().filter(|seen| seen.at >= after);
    let all = all.filter_map(|seen| match seen.what {
        EventKind::SnapshotPart { part } => Some(Turn { stamp: Stamp::of(seen), part }),
        _ => None,
    });
    let all: Vec<Turn<'a>> = all.collect();
    let source = all.first().map(|turn| turn.stamp.source);
    all.into_iter().filter(|turn| Some(turn.stamp.source) == source).collect()
}

/// When the vCPUs went on.
fn runs<'a>(facts: &RunIndex<'a>, after: Ns) -> Option<Stamp<'a>> {
    let running = |w: &EventKind| matches!(w, EventKind::RunState { state } if state == "running");
    let exit = |w: &EventKind| matches!(w, EventKind::Reached { .. });
    let seen = facts.seen.iter().filter(|seen| seen.at >= after);
    seen.filter(|seen| running(seen.what) || exit(seen.what)).map(Stamp::of).next()
}

/// The phase in which a part is loaded; none for what is no part.
fn phase(part: &SnapshotPart) -> Option<&'static str> {
    match part {
        SnapshotPart::Ram => Some(LOAD_RAM),
        SnapshotPart::State { .. } => Some(LOAD_STATE),
        SnapshotPart::Both => Some(LOAD),
        SnapshotPart::Other | SnapshotPart::Loaded => None,
    }
}

/// What is loaded, part by part; states that follow one another are one span, with a part for each
/// device that has a name. A VMM that no launcher started is `alone`: between two parts it is not yet done with
/// the first, or prepares the second, and that time has both names. A launcher may have waited there.
fn load<'a>(path: &mut Path<'a>, turns: &[Turn<'a>], alone: bool) {
    let mut devices: Vec<Node<'a>> = Vec::new();
    let mut before: Option<&str> = None;
    for pair in turns.windows(2) {
        let [turn, next] = pair else { break };
        let (from, to) = (turn.stamp.at, next.stamp.at);
        if let SnapshotPart::State { device } = turn.part {
            if !device.is_empty() && to > from {
                let error = turn.stamp.error.max(next.stamp.error);
                let node = Node::new(format!("load {device}"), from, to, turn.stamp.source);
                devices.push(Node { error, ..node });
            }
        }
        let (this, after) = (phase(turn.part), phase(next.part));
        if after != this {
            let name = match (before, this, after) {
                (_, Some(this), _) => this.to_owned(),
                (Some(before), None, Some(after)) if alone && before == after => before.to_owned(),
                (Some(before), None, Some(after)) if alone => format!("{before}+{after}"),
                _ => UNATTRIBUTED.to_owned(),
            };
            path.to(&name, Some(next.stamp));
        }
        before = this.or(before);
    }
    devices.into_iter().for_each(|device| path.tree.place(device));
}

/// When its launcher first asked the VMM for something by its API: a VMM that loads when asked has
/// loaded nothing before.
fn asked<'a>(facts: &RunIndex<'a>, after: Ns) -> Option<Stamp<'a>> {
    let requests = facts.seen.iter().filter_map(|seen| match seen.what {
        EventKind::Launched { what, ns } if what.contains(" /") => {
            let stamp = Stamp::of(seen);
            Some(Stamp { at: stamp.at.saturating_sub(*ns), ..stamp })
        }
        _ => None,
    });
    requests.filter(|stamp| stamp.at >= after).min_by_key(|stamp| stamp.at)
}

/// What the launcher does, beside what the VMM does.
fn launcher<'a>(facts: &RunIndex<'a>) -> impl Iterator<Item = Node<'a>> {
    facts.seen.iter().filter_map(|seen| match seen.what {
        EventKind::Launched { what, ns } => {
            let from = seen.at.saturating_sub(*ns).max(0);
            let node = Node::new(format!("launcher:{what}"), from, seen.at, seen.source);
            Some(Node { error: seen.error, ..node })
        }
        _ => None,
    })
}

/// Why time is `unattributed`.
pub(crate) fn explain(timeline: &Timeline, facts: &RunIndex<'_>) -> Vec<String> {
    let leaves = timeline.leaves().filter(|span| span.name == UNATTRIBUTED);
    let all: Ns = leaves.map(|span| span.len()).sum();
    if all as f64 <= timeline.total as f64 * WORTH_A_WORD {
        return Vec::new();
    }
    let has_turns = !turns(facts, 0).is_empty();
    let why = match (has_turns, runs(facts, 0).is_some()) {
        (false, false) => {
            "vmeter saw neither the VMM load the snapshot nor the guest resume: to see the load, \
             name the snapshot's files with --image FILE; to see the guest resume, record KVM's \
             exits or QEMU's trace"
        }
        (false, true) => {
            "vmeter did not see when the VMM loaded each part of the snapshot: name the \
                snapshot's files with --image FILE"
        }
        (true, false) => {
            "vmeter did not see when the guest resumed (no KVM exits and no VMM trace)"
        }
        (true, true) => "in this time vmeter did not see the VMM load any part of the snapshot",
    };
    vec![format!("unattributed {:.3} s: {why}", seconds(all))]
}

#[cfg(test)]
mod tests {
    use crate::{build, verify};
    use vmeter_model::run::Origin;
    use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord, SnapshotPart, Timeline};

    const MS: Ns = 1_000_000;

    fn event(at: Ns, source: &str, what: EventKind) -> Event {
        Event { at: at * MS, error_ns: 0, source: source.into(), insns: None, what }
    }

    fn part(at: Ns, part: SnapshotPart) -> Event {
        event(at, "qemu-trace", EventKind::SnapshotPart { part })
    }

    fn device(at: Ns, name: &str) -> Event {
        part(at, SnapshotPart::State { device: name.into() })
    }

    fn run() -> RunRecord {
        RunRecord {
            origin: Origin::Restore,
            total_ns: 300 * MS,
            moments: vec![(300 * MS, Moment::Ready)],
            ..RunRecord::default()
        }
    }

    fn start() -> Vec<Event> {
        vec![
            event(1, "process", EventKind::VmmExec),
            event(5, "process", EventKind::VmmEntry),
            event(6, "process", EventKind::VmmMain),
            event(300, "process", EventKind::Ready),
            event(300, "process", EventKind::VmmKilled),
        ]
    }

    fn running(at: Ns) -> Event {
        event(at, "qemu-trace", EventKind::RunState { state: "running".into() })
    }

    fn phases(timeline: &Timeline) -> Vec<(&str, Ns)> {
        timeline.phases.iter().map(|(name, ns)| (name.as_str(), ns / MS)).collect()
    }

    #[test]
    fn every_phase_from_exec_to_answer() {
        let mut events = start();
        events.extend([
            device(60, ""),
            part(62, SnapshotPart::Ram),
            part(100, SnapshotPart::Ram),
            device(162, "cpu"),
            device(164, "apic"),
            part(170, SnapshotPart::Loaded),
            running(180),
        ]);
        let timeline = build(&events, &run());
        verify(&timeline).expect("it tiles");
        let expected = [
            ("vmm:exec", 1),
            ("vmm:link", 5),
            ("vmm:init", 54),
            ("vmm:load-state", 10),
            ("vmm:load-ram", 100),
            ("vmm:resume", 10),
            ("guest:until-ready", 120),
            ("unattributed", 0),
        ];
        assert_eq!(phases(&timeline), expected);
        let leaf = |name: &str| timeline.leaves().find(|span| span.name == name).map(|s| s.len());
        assert_eq!((leaf("load cpu"), leaf("load apic")), (Some(2 * MS), Some(6 * MS)));
        assert!(timeline.warnings.is_empty(), "{:?}", timeline.warnings);
    }

    #[test]
    fn what_nothing_shows_is_unattributed() {
        let timeline = build(&start(), &run());
        verify(&timeline).expect("it tiles");
        assert_eq!(phases(&timeline)[2], ("unattributed", 294));
        assert!(timeline.warnings.iter().any(|w| w.contains("--image")), "{:?}", timeline.warnings);

        let mut events = start();
        events.push(running(100));
        let timeline = build(&events, &run());
        let spans: Vec<&str> = timeline.spans.iter().map(|span| span.name.as_str()).collect();
        assert!(spans.contains(&"vmm:init+vmm:load"), "{spans:?}");
        assert_eq!(
            phases(&timeline)[2..],
            [("vmm:init+vmm:load", 94), ("guest:until-ready", 200), ("unattributed", 0)]
        );

        // It was asked to load after 60 ms, and answered after 90 ms.
        let what = "PUT /snapshot/load".to_owned();
        events.push(event(90, "launcher", EventKind::Launched { what, ns: 30 * MS }));
        let timeline = build(&events, &run());
        verify(&timeline).expect("it tiles");
        let expected = [("vmm:init", 54), ("vmm:load", 40), ("guest:until-ready", 200)];
        assert_eq!(phases(&timeline)[2..5], expected);
    }

    fn of(timeline: &Timeline, name: &str) -> Option<Ns> {
        timeline.phases.iter().find(|(n, _)| n == name).map(|(_, ns)| ns / MS)
    }

    #[test]
    fn a_gap_between_two_files_is_the_vmms_unless_a_launcher_may_have_waited() {
        let mut events = start();
        let file = |at, part| event(at, "snapshot-files", EventKind::SnapshotPart { part });
        events.extend([
            file(20, SnapshotPart::State { device: "vmstate".into() }),
            file(30, SnapshotPart::Other),
            file(50, SnapshotPart::Ram),
            file(150, SnapshotPart::Loaded),
        ]);
        let alone = build(&events, &run());
        verify(&alone).expect("it tiles");
        let both = "vmm:load-state+vmm:load-ram";
        assert_eq!((of(&alone, "vmm:load-state"), of(&alone, both)), (Some(10), Some(20)));
        assert_eq!(of(&alone, "vmm:load-ram"), Some(100));
        let spans: Vec<&str> = alone.spans.iter().map(|span| span.name.as_str()).collect();
        assert!(spans.contains(&"vmm:resume+guest:until-ready"), "{spans:?}");
        assert_eq!(of(&alone, "unattributed"), Some(150));
        events.push(event(0, "process", EventKind::WrapperExec));
        let launched = build(&events, &run());
        verify(&launched).expect("it tiles");
        assert_eq!((of(&launched, both), of(&launched, "unattributed")), (None, Some(170)));
    }

    #[test]
    fn what_is_loaded_once_the_guest_runs_is_the_guests_time() {
        let mut events = start();
        let file = |at, part| event(at, "snapshot-files", EventKind::SnapshotPart { part });
        events.extend([
            file(20, SnapshotPart::State { device: "state.json".into() }),
            file(30, SnapshotPart::Ram),
            running(40),
            file(250, SnapshotPart::Loaded),
        ]);
        let timeline = build(&events, &run());
        verify(&timeline).expect("it tiles");
        assert_eq!(of(&timeline, "vmm:load-ram+vmm:resume"), Some(10));
        assert_eq!(of(&timeline, "guest:until-ready"), Some(260));
        assert_eq!(of(&timeline, "unattributed"), Some(0));
    }

    #[test]
    fn what_the_launcher_does_stands_beside_what_the_vmm_does() {
        let mut events = start();
        let request = EventKind::Launched { what: "PUT /snapshot/load".into(), ns: 30 * MS };
        events.extend([event(80, "vmm-api", request), device(60, ""), running(90)]);
        let timeline = build(&events, &run());
        verify(&timeline).expect("it tiles");
        let beside = timeline.overlapping.iter().find(|span| span.name.starts_with("launcher:"));
        let beside = beside.expect("a request");
        assert_eq!((beside.start / MS, beside.end / MS), (50, 80));
    }

    #[test]
    fn turns_out_of_order_still_tile() {
        let mut events = start();
        events.extend([running(3), part(299, SnapshotPart::Ram), part(2, SnapshotPart::Loaded)]);
        events.extend([device(250, "x"), running(100), device(250, "y")]);
        verify(&build(&events, &run())).expect("it tiles");
    }
}
