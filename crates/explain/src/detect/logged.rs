//! Accesses in a device model's own log (QEMU's): which one the time goes by at.
//!
//! QEMU logs a write before it serves it and a read after it has (`memory_region_ops_*`,
//! system/memory.c), and nothing when the guest goes on. So what is known is the time from a
//! write to the thread's next line, and to a read from the line before: the serving, and
//! whatever the guest did besides. Only where that is long as a rule it says something.

use super::view::{LEAST_COUNT, OUTLIER, SHARE_ALONE};
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject, SubjectKind};
use crate::kind::Why;
use crate::result::Severity;
use vmeter_render::quantity::brief_percent;

/// Share of the traced time from which an access is named that has no peers.
const HALF: f64 = 0.5;

/// An access at which time goes by.
pub struct SlowInLog;

impl Detector for SlowInLog {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // Where KVM's own trace is there too, that has their times.
        // Lines without stamps have an order, but no time.
        if view.times_requests() || view.seconds(1).is_none() {
            return Vec::new();
        }
        let all = view.subjects(SubjectKind::is_logged).into_iter();
        all.filter_map(|(key, subject)| self.of(view, key, subject)).collect()
    }
}

impl SlowInLog {
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        if subject.timed < LEAST_COUNT {
            return None;
        }
        // A guest that computes now and then between two accesses moves the mean.
        let median = subject.length.quantile(0.5).unwrap_or(0.0);
        let peers = view.peers(key);
        let typical = peers.map_or(0.0, |peers| peers.typical);
        let saving = ((median - typical).max(0.0) * subject.timed as f64) as u64;
        let least = if peers.is_some() { SHARE_ALONE } else { HALF };
        if median < OUTLIER * typical || view.share(saving) < least {
            return None;
        }
        let name = view.subject(key);
        let bound = match key.what {
            SubjectKind::LoggedPort { write: true, .. }
            | SubjectKind::LoggedMmio { write: true, .. } => {
                "An access begins at its own line in the log, and ends at the next line of the \
                 same thread"
            }
            _ => {
                "An access begins at the previous line of the same thread in the log, and ends at \
                 its own line"
            }
        };
        let claim = format!(
            "{name} takes {} (median of {} accesses), in all {}, which is {} of the traced time. \
                {bound}. The time between these lines can include time in which the guest itself \
                runs; the log does not show how much",
            view.time(median),
            subject.timed,
            view.time(subject.total as f64),
            brief_percent(view.share(subject.total)),
        );
        let places = [subject.first.map(|place| (0, place)), subject.worst];
        let figures = [("median_ticks", median), ("peers_median_ticks", typical)];
        Some(Candidate {
            why: Why::Logged,
            key: Some(key),
            summary: format!(
                "{name} takes at most {} in the median access and at most {} of the traced time, \
                    according to the device model's log",
                view.time(median),
                brief_percent(view.share(subject.total))
            ),
            saving,
            chain: vec![view.link(
                key.file,
                claim,
                (subject.timed, subject.total),
                &figures,
                &places,
            )],
            subject: name,
            suggestion: "record KVM's events as well as the log: the events show when the guest \
                continues, and what the vCPU's thread does until then"
                .into(),
            confirm: "vmeter explain -- COMMAND".into(),
            max_severity: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}
