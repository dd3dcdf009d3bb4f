//! CPU time of user space: what no system call explains.

use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject, Who};
use crate::result::Severity;
use vmeter_render::quantity::{brief_percent, plural};

/// Share of the traced time from which computing is more than a low finding.
const MOSTLY: f64 = 0.3;

/// User space that computes.
pub struct UserBurnt;

impl Detector for UserBurnt {
    fn kind(&self) -> &'static str {
        "user-cpu"
    }

    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        // Xen's requests are told apart by another detector; and without system calls in the
        // trace nobody knows that it is not these.
        let xen = |_: Who, part: Part| matches!(part, Part::XenRunning);
        if subject.ticks(xen) > 0 || !view.evidence.seen(key.file).syscalls {
            return None;
        }
        let user = subject.ticks(|_, part| matches!(part, Part::User));
        // As long as peers take is no finding.
        let typical = view.peers(key).map_or(0.0, |peers| peers.typical * subject.timed as f64);
        let ticks = user.saturating_sub(typical as u64);
        if !view.is_cause(key, subject, ticks) {
            return None;
        }
        let most = subject.parts.iter().filter(|((_, part), _)| matches!(part, Part::User));
        let (&(who, _), most) = most.max_by_key(|(_, amount)| amount.ticks)?;
        let calls = subject.ticks(|_, part| matches!(part, Part::Kernel(_) | Part::Between(_)));
        let made: u64 = subject
            .parts
            .iter()
            .filter(|((_, part), _)| matches!(part, Part::Kernel(_)))
            .map(|(_, amount)| amount.count)
            .sum();
        let who = view.who(who);
        let claim = format!(
            "in it, {who} computes in user space: {} of {}; not system calls ({} take {}, {})",
            view.time(user as f64),
            view.time(subject.total as f64),
            plural(made, "call"),
            view.time(calls as f64),
            brief_percent(calls as f64 / subject.total.max(1) as f64),
        );
        let link = view.link(
            key.file,
            claim,
            (subject.timed, user),
            &[("user_share", user as f64 / subject.total.max(1) as f64), ("calls", made as f64)],
            &[most.worst],
        );
        Some(Candidate {
            kind: self.kind(),
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!(
                "{} burns CPU time in user space, {} an access; system calls are not the cause",
                view.subject(key),
                view.time(user as f64 / subject.timed.max(1) as f64)
            ),
            chain: vec![link],
            suggestion: "profile the handler: the time is in the device model's own code".into(),
            confirm: "perf record -g -p PID -- sleep 5 && perf report --no-children".into(),
            // Computing may be what the request is for.
            at_most: Some(match view.share(ticks) {
                share if share >= MOSTLY => Severity::Medium,
                _ => Severity::Low,
            }),
            ..Candidate::default()
        })
    }
}
