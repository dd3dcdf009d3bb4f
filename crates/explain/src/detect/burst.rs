//! Many equal small calls in one request, where one batch would do.

use super::growth::calls_grow;
use super::levels::levels;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject};
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::Sym;
use vmeter_render::quantity::three_digits;

/// Share of the time of a loop's calls that they wait, from which fewer of them are no cure.
const WAITS: f64 = 0.3;

/// A loop of equal calls.
pub struct Burst;

impl Detector for Burst {
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let (call, amount) = subject.loop_of_calls()?;
        let per_access = amount.count as f64 / amount.instances.max(1) as f64;
        let ticks = (amount.ticks as f64 * (1.0 - 1.0 / per_access)) as u64;
        let grows = calls_grow(subject).is_some();
        if !view.is_cause(key, subject, ticks) || grows || waits_each(view, key, call) {
            return None;
        }
        let name = view.name(call);
        let moves = moves_bytes(name) && amount.returned > 0;
        let bytes = amount.returned as f64 / amount.count.max(1) as f64;
        let sized = if moves {
            format!(" of {} bytes", three_digits(bytes)).replace(" 1.00 bytes", " 1 byte")
        } else {
            String::new()
        };
        let claim = format!(
            "in it, {name} is called {} times{sized}, {} times an access, which takes {} with the \
             loop around it",
            amount.count,
            three_digits(per_access),
            view.time(amount.ticks as f64)
        );
        let mut figures = vec![("calls_per_access", per_access)];
        if moves {
            figures.push(("bytes_per_call", bytes));
        }
        let counted = (amount.count, amount.ticks);
        Some(Candidate {
            why: Why::Burst,
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!(
                "{} calls {name} {} times an access{sized}, where one call would do",
                view.subject(key),
                three_digits(per_access)
            ),
            chain: vec![view.link(key.file, claim, counted, &figures, &[amount.worst])],
            suggestion: format!(
                "collect the data of a request and call {name} once (or its vectored form, or \
                 io_uring)"
            ),
            confirm: format!("strace -f -c -e trace={name} -p PID (calls an access, then batched)"),
            ..Candidate::default()
        })
    }
}

/// True if the calls of a loop wait for something each time: one call would wait as well.
fn waits_each(view: &View<'_>, key: Key, call: Sym) -> bool {
    let levels = levels(view, Frame::Request(key));
    let in_call = |state: fn(Frame) -> bool| {
        let own = |c, s| c == Some(Frame::Call(call)) && state(s);
        levels.first().map_or(0, |level| level.ticks(own))
    };
    let runs = in_call(|state| state == Frame::Runs);
    let waits = in_call(|state| {
        use Frame::{Deep, Interrupt, Irq, Waker};
        matches!(state, Waker(_) | Irq(_) | Interrupt | Deep | Frame::Timer)
    });
    waits as f64 >= WAITS * waits.saturating_add(runs) as f64 && waits > 0
}

/// True for calls that return a number of bytes.
fn moves_bytes(name: &str) -> bool {
    ["read", "write", "pread", "pwrite", "send", "recv"].iter().any(|call| name.starts_with(call))
}
