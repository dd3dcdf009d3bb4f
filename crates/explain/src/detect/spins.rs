//! Calls for nothing: that look whether there is something, over and over, without waiting for
//! it, or that fail.

use super::habits::link;
use super::{Candidate, View};
use crate::evidence::calls::Calls;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use crate::result::Severity;
use vmeter_render::quantity::grouped;

/// Calls that return 0 if there is nothing; what they return else is not looked at.
const LOOKS: [&str; 8] = [
    "poll",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "select",
    "pselect6",
    "sched_yield",
];
/// So many of them, this share of them for nothing, none of them longer on average (s), and this
/// share of the traced time with what goes on between them.
const SPINS: (u64, f64, f64, f64) = (1000, 0.9, 100e-6, 0.05);

/// So many calls of which this share fails, and this share of the traced time; where nobody
/// recorded who had a CPU, of all calls.
const FAILS: (u64, f64, f64) = (300, 0.8, 0.1);

/// Threads that ask over and over, or whose calls fail.
pub fn spins(view: &View<'_>) -> Vec<Candidate> {
    let mut all: Vec<(&(GroupId, Sym), &Calls)> = view.evidence.ledger.calls.iter().collect();
    all.sort_by_key(|(key, _)| **key);
    let made: u64 = all.iter().map(|(_, calls)| calls.count).sum();
    let found = all.into_iter().filter_map(|(&(who, call), calls)| {
        spin(view, who, call, calls).or_else(|| fails(view, (who, call), calls, made))
    });
    found.collect()
}

/// A call that hardly ever does anything.
fn fails(
    view: &View<'_>,
    (who, call): (GroupId, Sym),
    calls: &Calls,
    made: u64,
) -> Option<Candidate> {
    let (least, vain, share) = FAILS;
    let failed = calls.failed as f64 / calls.count.max(1) as f64;
    let part = match view.evidence.runs_seen() {
        true => view.share(calls.ticks),
        false => calls.count as f64 / made.max(1) as f64,
    };
    if calls.count < least || failed < vain || part < share || calls.kind.waits {
        return None;
    }
    let (who, name) = (view.threads(who), view.name(call));
    let (count, failed) = (grouped(&calls.count.to_string()), grouped(&calls.failed.to_string()));
    let claim = format!(
        "{failed} of {count} calls of {name} fail; all of them take {} of their own",
        view.time(calls.ticks as f64)
    );
    Some(Candidate {
        kind: "burst-of-calls",
        subject: who.clone(),
        saving: calls.ticks,
        summary: format!("{who} calls {name} {count} times in vain: {failed} fail"),
        chain: vec![link(view, call.file, claim, calls.count, calls.ticks, calls.worst)],
        suggestion: format!(
            "find out why {name} fails; keep what is known to fail, and do not ask again"
        ),
        confirm: format!("strace -f -Z -e trace={name} COMMAND"),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    })
}

fn spin(view: &View<'_>, who: GroupId, call: Sym, calls: &Calls) -> Option<Candidate> {
    let (least, vain, long, share) = SPINS;
    let name = view.name(call);
    if !LOOKS.contains(&name) || calls.count < least {
        return None;
    }
    let each = view.seconds(calls.ticks / calls.count)?;
    let nothing = calls.zeros.0 as f64 >= vain * calls.count as f64;
    // Between the calls it does nothing but call again.
    let life = view.loud_tree().root_of(Frame::Life(who)).map_or(0, |at| {
        let runs = |(_, node): &(u32, &crate::evidence::tree::Node)| node.frame == Frame::Runs;
        let within = view.loud_tree().within(at);
        crate::sum(within.iter().filter(|node| runs(node)).map(|(_, node)| node.ticks))
    });
    let saving = calls.ticks.saturating_add(life);
    if !nothing || each > long || view.share(saving) < share {
        return None;
    }
    let (who, count) = (view.threads(who), grouped(&calls.count.to_string()));
    let claim = format!(
        "{} of {count} calls of {name} return at once with nothing; they take {}, what is between \
         them {}",
        grouped(&calls.zeros.0.to_string()),
        view.time(calls.ticks as f64),
        view.time(life as f64)
    );
    Some(Candidate {
        kind: "burst-of-calls",
        subject: who.clone(),
        saving,
        summary: format!("{who} asks by {name} {count} times in vain, without waiting"),
        chain: vec![link(view, call.file, claim, calls.count, saving, calls.worst)],
        suggestion: format!(
            "wait for the event itself: {name} with a time-out, a futex, an eventfd"
        ),
        confirm: format!("strace -c -f -e trace={name} -p PID"),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    })
}
