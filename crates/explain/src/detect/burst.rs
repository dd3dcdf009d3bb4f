//! Many equal small calls in one request, where one batch would do.

use super::growth::calls_grow;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject};
use vmeter_render::quantity::three_digits;

/// A loop of equal calls.
pub struct Burst;

impl Detector for Burst {
    fn kind(&self) -> &'static str {
        "burst-of-calls"
    }

    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let (call, amount) = subject.loop_of_calls()?;
        let per_access = amount.count as f64 / amount.instances.max(1) as f64;
        let ticks = (amount.ticks as f64 * (1.0 - 1.0 / per_access)) as u64;
        if !view.is_cause(key, subject, ticks) || calls_grow(subject).is_some() {
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
            kind: self.kind(),
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

/// True for calls that return a number of bytes.
fn moves_bytes(name: &str) -> bool {
    ["read", "write", "pread", "pwrite", "send", "recv"].iter().any(|call| name.starts_with(call))
}
