//! Calls that move a few bytes each, where nobody recorded what has a CPU (strace).

use super::habits::link;
use super::{Candidate, Detector, View};
use crate::evidence::calls::Calls;
use crate::evidence::groups::GroupId;
use crate::kind::Why;
use crate::moment::Sym;
use crate::result::Severity;
use vmeter_render::quantity::{grouped, three_digits};

/// Calls that return how many bytes they have moved.
const MOVES: [&str; 9] = [
    "read",
    "write",
    "pread64",
    "pwrite64",
    "sendfile",
    "sendto",
    "recvfrom",
    "splice",
    "copy_file_range",
];
/// So many calls for so few bytes each, none of them waiting so long (s), and of all calls this
/// share.
const BYTES: (u64, u64, f64, f64) = (1000, 512, 100e-6, 0.25);

type Known<'a> = (GroupId, Sym, &'a Calls);

/// Many small calls.
pub struct Bytes;

impl Detector for Bytes {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        if view.evidence.runs_seen() || !view.requests().is_empty() {
            return Vec::new();
        }
        let ledger = view.evidence.ledger.calls.iter();
        let mut all: Vec<Known<'_>> =
            ledger.map(|((who, call), calls)| (*who, *call, calls)).collect();
        all.sort_by_key(|(who, call, _)| (*who, *call));
        let count: u64 = all.iter().map(|(_, _, calls)| calls.count).sum();
        all.into_iter().filter_map(|known| bytes(view, known, count)).collect()
    }
}

fn bytes(view: &View<'_>, (who, call, calls): Known<'_>, all: u64) -> Option<Candidate> {
    let (least, few, long, share) = BYTES;
    let name = view.name(call);
    let each = calls.returned as f64 / calls.count.max(1) as f64;
    let time = view.seconds(calls.ticks / calls.count.max(1))?;
    let many = calls.count >= least && calls.count as f64 >= share * all as f64;
    if !MOVES.contains(&name) || !many || each > few as f64 || each <= 0.0 || time > long {
        return None;
    }
    let who = view.threads(who);
    let count = grouped(&calls.count.to_string());
    let claim = format!(
        "{count} calls of {name} move {} bytes, {} each, and take {} of their own; their way into the \
         kernel and back is not in that",
        grouped(&calls.returned.to_string()),
        three_digits(each),
        view.time(calls.ticks as f64)
    );
    Some(Candidate {
        why: Why::Burst,
        subject: who.clone(),
        saving: calls.ticks,
        summary: format!("{who} calls {name} {count} times for {} bytes each", three_digits(each)),
        chain: vec![link(view, call.file, claim, calls.count, calls.ticks, calls.worst)],
        suggestion: format!("one {name} for many (a buffer, a larger block), not one each"),
        confirm: "perf stat -e raw_syscalls:sys_enter -- COMMAND (the same with a larger block)"
            .into(),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    })
}
