//! What is slow, and why: the critical path of each subject to where its time ends.
//!
//! A subject is a kind of request of a guest, or the threads of a name. [`path`] follows whom it
//! waits for, [`end`] says what the last one does, [`cause`] names that, and [`severity`] says how
//! much it matters. Nothing here knows a fault: whatever is at the end is named.

mod cause;
mod end;
mod links;
mod locks;
mod loops;
mod path;
mod sentences;
mod severity;
mod subjects;

use crate::detect::{outlier, Candidate, Peers, View, DETECTORS, LEAST_SHARE};
use crate::evidence::collect::records;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::Sym;
use crate::rank;
use crate::result::{Finding, Severity};
use cause::Cause;
use end::{ending, End};
pub use loops::{rounds, Rounds};
pub use path::grown_call;
use path::Path;
use severity::weigh;
pub use severity::Aside;
use std::cmp::Reverse;
pub use subjects::{is_asked, partner};
use vmeter_render::quantity::three_digits;

/// Most findings.
pub const MOST: usize = 12;
/// What is said of a subject, with what orders it.
struct Diagnosed {
    root: Frame,
    candidate: Candidate,
    /// Where the path ends: who, and in what call.
    end: (Option<GroupId>, End, Option<Sym>),
    hops: usize,
    firm: bool,
    /// It is told of its subject besides what that one's time goes into most.
    besides: bool,
}

impl Diagnosed {
    /// A pattern, which no path leads to.
    fn pattern(root: Frame, candidate: Candidate) -> Diagnosed {
        let candidate = Candidate { key: None, ..candidate };
        Diagnosed {
            root,
            candidate,
            end: (None, End::Asleep, None),
            hops: 0,
            firm: true,
            besides: false,
        }
    }

    fn is_pattern(&self) -> bool {
        self.end.0.is_none() && self.end.1 == End::Asleep
    }

    /// It says of one that nobody asked about and nobody waits for that it computes.
    fn only_computes(&self) -> bool {
        let Candidate { idle, aside, .. } = self.candidate;
        idle && aside >= Aside::Alone && self.hops == 0 && self.end.1 == End::User
    }

    /// What goes first of those that are about one subject.
    fn rank(&self, view: &View<'_>) -> (Reverse<Severity>, Aside, Reverse<u64>) {
        let Candidate { aside, saving, .. } = self.candidate;
        (Reverse(self.candidate.severity(view)), aside, Reverse(saving))
    }

    /// True if the other is about the same thread, or about the one at the end of this path.
    fn holds(&self, view: &View<'_>, other: &Diagnosed) -> bool {
        if self.is_pattern() || other.is_pattern() || other.root.life().is_none() {
            return false;
        }
        let end = self.end.0.filter(|_| self.hops > 0);
        let share = other.candidate.way.first().map_or(0.0, |step| step.share);
        let below = end == other.root.life() && share >= path::OTHER;
        self.root == other.root || below && self.rank(view) <= other.rank(view)
    }

    /// The other is a part of this one's tree.
    fn takes(&mut self, view: &View<'_>, mut other: Diagnosed) {
        if self.root == other.root && other.rank(view) < self.rank(view) {
            std::mem::swap(self, &mut other);
            self.candidate.parts.append(&mut other.candidate.parts);
        }
        // The host's load is said where it is left out.
        if other.end.1 != End::HostLoad || other.hops > 0 {
            self.candidate.parts.push(other.candidate);
        }
    }

    /// True if both name the same cause.
    fn is_like(&self, other: &Diagnosed) -> bool {
        let request = |told: &Diagnosed| matches!(told.root, Frame::Request(_));
        if request(self) && request(other) {
            return false;
        }
        match (self.end.1, other.end.1) {
            (End::Cpu(one), End::Cpu(two)) | (End::Stopped(one), End::Stopped(two)) => one == two,
            _ => self.end == other.end && self.end.0.is_some(),
        }
    }
}

/// Everything that stands out, worst first.
pub fn findings(view: &View<'_>) -> Vec<Finding> {
    diagnosed(view).0
}

/// Everything that stands out, worst first; and whether the threads of `--comm` only compute or sleep
/// by themselves, and not in a loop.
pub fn diagnosed(view: &View<'_>) -> (Vec<Finding>, bool) {
    let told = all(view);
    let idles =
        view.comm().is_some() && told.iter().all(|told| told.candidate.aside == Aside::Last);
    let mut findings: Vec<Finding> =
        told.into_iter().map(|told| rank::finding(view, told.candidate)).collect();
    rank::sort(&mut findings);
    findings.truncate(MOST);
    (findings, idles)
}

/// Of threads that were there for less, s, there is nothing to save.
const LEAST: f64 = 1e-3;

fn all(view: &View<'_>) -> Vec<Diagnosed> {
    let mut told: Vec<Diagnosed> = Vec::new();
    for root in subjects::subjects(view) {
        let Some(path) = Path::of(view, root) else { continue };
        let main = tell(view, &path);
        // What it does itself comes after what it waits for, or does most; but before its pauses.
        let pauses = main.as_ref().is_some_and(|main| main.hops == 0 && main.end.1 == End::Timer);
        let aside = main.as_ref().filter(|_| !pauses).map(|main| main.candidate.aside);
        let computes = main.as_ref().is_some_and(Diagnosed::only_computes);
        let about = main.as_ref().map(|told| (told.candidate.other_program, told.candidate.called));
        told.extend(main);
        told.extend(path.others(view).into_iter().filter_map(|path| {
            let mut other = Diagnosed { besides: true, ..tell(view, &path)? };
            if let Some((other_program, called)) = about {
                (other.candidate.other_program, other.candidate.called) = (other_program, called);
            }
            if path.levels.len() == 1 && (aside < Some(Aside::Alone) || !computes) {
                other.candidate.aside = other.candidate.aside.max(aside.unwrap_or_default());
            }
            Some(other)
        }));
    }
    for pattern in patterns(view) {
        overlay(view, &mut told, pattern);
    }
    let mut told = once(view, told);
    if told.iter().any(|told| told.candidate.aside < Aside::Alone) {
        told.retain(|told| !told.only_computes());
    }
    told
}

fn tell(view: &View<'_>, path: &Path) -> Option<Diagnosed> {
    let root = path.root;
    if root.life().is_some() && view.seconds(path.total()).is_some_and(|s| s < LEAST) {
        return None;
    }
    let ending = ending(view, path);
    let cause = Cause::of(view, path, ending);
    let recorder = |who: GroupId| records(view.evidence.groups.name(who));
    // Who waits for a recorder, or is stopped by one, belongs to the recording.
    let stopped = matches!(ending.end, End::Stopped(by) if recorder(by));
    let mut waits = path.levels.iter().filter_map(|level| level.who);
    if root.life().is_some() && (stopped || waits.any(recorder)) {
        return None;
    }
    let weight = weigh(&cause)?;
    let mut words = cause.words();
    let key = match root {
        Frame::Request(key) => Some(key),
        _ => None,
    };
    let peers = key.and_then(|key| view.peers(key)).filter(|peers| peers.slow);
    let head = key.and_then(|key| outlier(view, key));
    let mut chain = cause.chain();
    let at = chain.len().min(1);
    if let Some(head) = head {
        chain.splice(at..at, head.chain);
    }
    if let Some(peers) = peers.or_else(|| cause.peers_of_call()) {
        words.summary = beside_peers(words.summary, peers, key.is_none());
    }
    let saving = peers.map_or(weight.saving, |peers| peers.excess.max(weight.saving));
    // Who waits most for those asked about tells what they do while somebody needs them.
    let waited = path.levels.iter().filter_map(|level| level.who);
    let called = root.life().into_iter().chain(waited).any(|group| view.is_called(group));
    let candidate = Candidate {
        why: words.why,
        key: None,
        subject: view.frame(root),
        with: None,
        saving,
        summary: words.summary,
        way: cause.way(),
        parts: Vec::new(),
        culprit: cause.culprit(),
        chain,
        suggestion: words.fix,
        confirm: words.check,
        max_severity: weight.max_severity,
        error: path.levels.get(1).or(path.levels.first()).map(|level| level.squares.sqrt()),
        life: root.life().is_some(),
        minus_baseline: view.is_beyond() && root.life().is_some(),
        other_program: !called && root.life().is_some_and(|group| view.is_foreign(group)),
        aside: weight.aside,
        idle: weight.idle,
        called,
    };
    let who = path.group_at(view, path.doer);
    let end = (who, ending.end, ending.call);
    Some(Diagnosed { root, candidate, end, hops: path.doer, firm: weight.firm, besides: false })
}

/// What several subjects wait for is said once: of a guest's request, of one that asks for it, of the one
/// that is furthest from it.
fn once(view: &View<'_>, mut told: Vec<Diagnosed>) -> Vec<Diagnosed> {
    told.sort_by_key(|told| {
        let request = matches!(told.root, Frame::Request(_));
        let Candidate { other_program, aside, saving, called, .. } = told.candidate;
        (
            Reverse(request),
            Reverse(called),
            // Who waits for one that computes says more.
            told.only_computes(),
            Reverse(told.firm),
            Reverse(told.candidate.severity(view)),
            other_program,
            aside,
            Reverse(told.hops),
            Reverse(saving),
        )
    });
    let mut kept: Vec<Diagnosed> = Vec::new();
    for one in told {
        if kept.iter().any(|other| other.is_like(&one)) {
            continue;
        }
        match kept.iter_mut().find(|other| other.holds(view, &one)) {
            Some(other) => other.takes(view, one),
            None => kept.push(one),
        }
    }
    kept
}

/// What calls and accesses do from one to the next.
fn patterns(view: &View<'_>) -> Vec<Candidate> {
    if view.is_beyond() {
        return Vec::new();
    }
    let all = DETECTORS.iter().flat_map(|detector| detector.detect(view));
    let own = view.own().into_iter().flatten();
    let own = own.map(|group| view.threads(*group)).collect::<Vec<_>>();
    let about = |c: &Candidate| {
        let with = c.with.is_some_and(|with| !view.is_foreign(with));
        !view.is_about_one() || c.key.is_some() || own.contains(&c.subject) || with
    };
    let all = all.filter(|c| about(c) && !c.other_program && view.share(c.saving) >= LEAST_SHARE);
    let mut all: Vec<Candidate> =
        all.map(|c| Candidate { called: view.comm().is_some(), ..c }).collect();
    all.sort_by_key(|c| (c.why.modifier().is_none(), Reverse(c.saving)));
    all
}

/// A pattern is about a subject: it takes the place of what is said of that one if it explains half as
/// much and does not stand before what the path ends at.
fn overlay(view: &View<'_>, told: &mut Vec<Diagnosed>, mut pattern: Candidate) {
    if pattern.subject.is_empty() {
        pattern.subject = pattern.key.map_or(String::new(), |key| view.subject(key));
    }
    let root = pattern.key.map(Frame::Request);
    let same = |one: &Diagnosed| match root {
        Some(root) => one.root == root,
        None => one.candidate.subject == pattern.subject && !one.besides,
    };
    let beside = root.unwrap_or(Frame::Unknown);
    let Some(at) = told.iter().position(same) else {
        return told.push(Diagnosed::pattern(beside, pattern));
    };
    if pattern.why == Why::Gap {
        return stall(view, told, at, pattern);
    }
    let one = &mut told[at];
    if one.is_pattern() {
        // Another pattern of the same.
        return one.candidate.chain.extend(pattern.chain);
    }
    let own = &mut one.candidate;
    let ends =
        own.why.is_end() || own.why.is_no_cpu() || matches!(own.why, Why::Stopped | Why::Timer);
    // That it computes says less than why there is so much of it.
    let computes = own.why.is_thread() || own.why == Why::Busy;
    let times = if computes { 5 } else { 2 };
    let little = pattern.saving.saturating_mul(times) < own.saving;
    if little && pattern.severity(view) > own.severity(view) {
        return told.push(Diagnosed::pattern(beside, pattern));
    }
    // What it waits for has its own time; that memory is taken back is why.
    let reads = matches!(one.end.1, End::Disk | End::Deep) && pattern.why == Why::Reclaim;
    if little || reads || ends && matches!(pattern.why, Why::Burst | Why::Grows | Why::HandOver) {
        return own.chain.extend(pattern.chain);
    }
    pattern.key = None;
    pattern.chain.append(&mut own.chain);
    pattern.way = std::mem::take(&mut own.way);
    *own = pattern;
}

/// A single long stretch of what else is explained: if it is most of that, the explanation keeps the rest.
fn stall(view: &View<'_>, told: &mut Vec<Diagnosed>, at: usize, pattern: Candidate) {
    let Diagnosed { root, candidate: rule, .. } = &mut told[at];
    let root = *root;
    if pattern.saving.saturating_mul(2) < rule.saving {
        return;
    }
    rule.saving = rule.saving.saturating_sub(pattern.saving);
    if view.share(rule.saving) < LEAST_SHARE {
        told.remove(at);
    }
    told.push(Diagnosed::pattern(root, pattern));
}

/// How much slower it is than its peers, where there is room for that.
fn beside_peers(summary: String, peers: &Peers, calls: bool) -> String {
    let whom = if calls { "other calls" } else { "its peers" };
    let longer = format!("{summary}, {}× as slow as {whom}", three_digits(peers.ratio));
    match rank::fits(&longer) {
        true => longer,
        false => summary,
    }
}
