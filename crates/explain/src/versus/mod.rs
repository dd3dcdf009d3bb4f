//! A trace against one of the same without the fault: what takes longer, or comes more often, for
//! the same work.
//!
//! The twin's time is taken from the tree of names, node by node: what is left is what the trace
//! has beyond it, and the way down that is the answer. Traces of equal work have equal numbers of
//! calls and requests; where one recording has fewer of those that take its time, it did less of
//! the work in as long, and the twin's time counts for less.

use crate::detect::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::{Frame, Tree};
use crate::result::Finding;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::{discriminant, Discriminant};

/// Ratios of numbers that are one, as the logarithm of their quotient.
const ALIKE: f64 = 0.15;
/// As much work is likelier than more or less of it, by that.
const EQUAL: f64 = 1.5;
/// Fewer calls tell nothing of the work done.
const FEWEST: u64 = 5;
/// Least share of the twin's work.
const LEAST: f64 = 1e-3;

/// What a trace has beyond its twin, in the place of what its threads do with their whole lives.
pub fn findings(view: View<'_>, twin: &View<'_>, alone: Vec<Finding>) -> Vec<Finding> {
    if recorded(&view) == recorded(twin) {
        // A copy of the same recording.
        return Vec::new();
    }
    let pairs = pairs(&view, twin);
    let work = work(&pairs);
    let same = same(&view, &pairs);
    let tree = minus_baseline((&view, view.tree()), (twin, twin.tree()), work);
    let view = view.minus_baseline(tree, same);
    let mut minus_baseline = crate::diagnose::findings(&view);
    minus_baseline.retain(|finding| finding.minus_baseline);
    let mut all = alone;
    let told = minus_baseline.iter().any(|finding| finding.after < 3);
    all.retain(|finding| !told || !finding.life);
    all.extend(minus_baseline);
    all
}

/// What no two recordings have alike: for how long they were made, and all that went by.
fn recorded(view: &View<'_>) -> (u64, Vec<u64>) {
    let nodes = view.tree().nodes().map(|(_, node)| node.ticks);
    (view.evidence.span(), nodes.collect())
}

/// Something that both have: how many times as often the trace has it, and the time that goes by
/// in it, s.
struct Pair {
    ratio: f64,
    weight: f64,
    /// Whose it is: several may be called alike.
    groups: BTreeSet<GroupId>,
}

fn pairs(view: &View<'_>, twin: &View<'_>) -> Vec<Pair> {
    let (ours, theirs) = (counts(view), counts(twin));
    let seconds = |view: &View<'_>| view.seconds(view.evidence.span()).unwrap_or(1.0).max(1e-9);
    // More work than that would be done faster than the twin does it.
    let most = (seconds(view) / seconds(twin)).max(1.0) * 1.05;
    let pairs = ours.into_iter().filter_map(|(name, (count, weight, groups))| {
        let (other, theirs, _) = theirs.get(&name)?;
        let enough = count >= FEWEST && *other >= FEWEST;
        let ratio = count as f64 / (*other).max(1) as f64;
        let fits = enough && (LEAST..=most).contains(&ratio);
        fits.then_some(Pair { ratio, weight: (weight * theirs).sqrt(), groups })
    });
    pairs.collect()
}

fn alike(one: f64, other: f64) -> bool {
    (one.ln() - other.ln()).abs() < ALIKE
}

/// How many times the twin's work a trace has in it: the ratio of numbers that most of the time
/// speaks for.
fn work(pairs: &[Pair]) -> f64 {
    let support = |of: f64| -> f64 {
        pairs.iter().filter(|pair| alike(pair.ratio, of)).map(|pair| pair.weight).sum()
    };
    let mut best = (1.0, support(1.0) * EQUAL);
    for pair in pairs {
        let own = support(pair.ratio);
        if own > best.1 {
            best = (pair.ratio, own);
        }
    }
    best.0
}

/// Threads that do one kind of work in both, more or less of it: all their calls come as many times as
/// often. Of other programs, now this call comes more often and now that.
fn same(view: &View<'_>, pairs: &[Pair]) -> BTreeSet<GroupId> {
    let mut by: HashMap<GroupId, Vec<&Pair>> = HashMap::new();
    for pair in pairs {
        for group in &pair.groups {
            by.entry(*group).or_default().push(pair);
        }
    }
    let user = |group| !view.evidence.groups.is_kernel(group);
    let one = |own: &[&Pair]| {
        let all: f64 = own.iter().map(|pair| pair.weight).sum();
        let like = |of: f64| own.iter().filter(move |pair| alike(pair.ratio, of));
        let most = own.iter().map(|pair| like(pair.ratio).map(|pair| pair.weight).sum::<f64>());
        most.fold(0.0, f64::max) * 2.0 > all
    };
    let same = by.into_iter().filter(|(group, own)| user(*group) && one(own));
    same.map(|(group, _)| group).collect()
}

/// How often something was done, the time that went by in it, s, and by whom: requests and calls;
/// where these are not recorded, wake-ups.
fn counts(view: &View<'_>) -> BTreeMap<String, (u64, f64, BTreeSet<GroupId>)> {
    let evidence = view.evidence;
    let chosen = |group| !evidence.groups.is_kernel(group) && !view.is_foreign(group);
    let mut all: BTreeMap<String, (u64, f64, BTreeSet<GroupId>)> = BTreeMap::new();
    let mut add = |name: String, count: u64, weight: f64, group: Option<GroupId>| {
        let sum = all.entry(name).or_default();
        (sum.0, sum.1) = (sum.0 + count, sum.1 + weight);
        sum.2.extend(group);
    };
    for (key, subject) in view.requests() {
        let seconds = view.seconds(subject.total).unwrap_or(0.0);
        add(view.request(key), subject.count, 2.0 * seconds, None);
    }
    for ((who, call), calls) in evidence.ledger.calls.iter().filter(|((who, _), _)| chosen(*who)) {
        let seconds = view.seconds(calls.ticks).unwrap_or(0.0);
        let name = format!("{} {}", evidence.groups.common(*who), view.name(*call));
        add(name, calls.count, seconds, Some(*who));
    }
    if evidence.ledger.calls.is_empty() {
        for ((by, _, woken), wakes) in &evidence.ledger.wakes {
            if chosen(*by) && chosen(*woken) {
                let name = evidence.groups.common(*by);
                let name = format!("{name} wakes {}", evidence.groups.common(*woken));
                add(name, wakes.wakes, wakes.wakes as f64, Some(*by));
            }
        }
    }
    all
}

/// Single threads by their order among those of their name: the first is the first in another
/// recording, too.
type Order = HashMap<(GroupId, i32), usize>;

fn order(tree: &Tree) -> Order {
    let threads = tree.roots().filter_map(|(_, node)| match node.frame {
        Frame::Thread(group, tid) => Some((group, tid)),
        _ => None,
    });
    let mut next: BTreeMap<GroupId, usize> = BTreeMap::new();
    let sorted: BTreeSet<(GroupId, i32)> = threads.collect();
    let numbered = sorted.into_iter().map(|thread| {
        let next = next.entry(thread.0).or_default();
        *next += 1;
        (thread, *next)
    });
    numbered.collect()
}

/// What a node stands for, in any trace.
type Name<'a> = (Discriminant<Frame>, std::borrow::Cow<'a, str>);

/// `own` says whether it is known in both what they were made for: then others that are called
/// alike are not the same.
fn name<'a>(view: &'a View<'_>, frame: Frame, (own, order): (bool, &Order)) -> Name<'a> {
    let groups = &view.evidence.groups;
    let text = match frame {
        Frame::Life(who) | Frame::Waker(who) | Frame::Has(who) | Frame::Stopped(who) => {
            let common = groups.common(who);
            match own && groups.get(who).is_some_and(|group| group.own) {
                true => format!("own {common}").into(),
                false => common.into(),
            }
        }
        Frame::Thread(who, tid) => {
            let order = order.get(&(who, tid)).copied().unwrap_or(0);
            format!("{} {order}", groups.common(who)).into()
        }
        Frame::Call(name) | Frame::Work(name) | Frame::Irq(name) => view.name(name).into(),
        Frame::Request(key) => view.request(key).into(),
        _ => "".into(),
    };
    (discriminant(&frame), text)
}

/// The tree without the time that the twin's nodes of the same names have, `work` times.
fn minus_baseline(
    (view, tree): (&View<'_>, &Tree),
    (twin, theirs): (&View<'_>, &Tree),
    work: f64,
) -> Tree {
    const NONE: u32 = u32::MAX;
    let own = !view.evidence.own.is_empty() && !twin.evidence.own.is_empty();
    let (ours, twins) = ((own, &order(tree)), (own, &order(theirs)));
    let mut known: HashMap<(u32, Name<'_>), u32> = HashMap::new();
    for (at, node) in theirs.nodes() {
        let parent = if node.parent == at { NONE } else { node.parent };
        known.entry((parent, name(twin, node.frame, twins))).or_insert(at);
    }
    // Each node's, by its own index; those above come first.
    let mut same: Vec<Option<u32>> = Vec::new();
    for (at, node) in tree.nodes() {
        let parent = match node.parent {
            parent if parent == at => Some(NONE),
            parent => same.get(parent as usize).copied().flatten(),
        };
        let found = parent.and_then(|parent| known.get(&(parent, name(view, node.frame, ours))));
        same.push(found.copied());
    }
    let ticks = match (twin.seconds(1), view.seconds(1)) {
        (Some(theirs), Some(ours)) => work * theirs / ours,
        _ => work,
    };
    tree.reduced(|at, own| {
        let other = same.get(at as usize).copied().flatten().map_or(0, |other| theirs.own(other));
        own.saturating_sub((other as f64 * ticks) as u64)
    })
}
