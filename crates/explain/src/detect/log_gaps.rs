//! Time that goes by between two events of QEMU's log, over and over: a request and its answer, a
//! sleep and its end.

use super::patterns::link;
use super::{Candidate, Detector, View};
use crate::kind::Why;
use crate::log_gaps::{Gap, LogGaps};
use crate::moment::{Place, Sym};
use crate::result::Severity;
use vmeter_render::quantity::{brief_percent, grouped};
use vmeter_trace::NO_CPU;

/// Share of the log's time.
const HALF: f64 = 0.5;
/// Fewer times are no habit.
const FEWEST: u64 = 5;
/// A log that stands still does so for many times as long as between its other lines.
const LONG: f64 = 20.0;
/// And for longer than a line takes to be written, s.
const LEAST_S: f64 = 100e-6;

/// How events of accesses begin.
const ACCESSES: [&str; 2] = ["memory_region_ops", "cpu_"];

/// What is known of events that begin so, and what to change.
const KNOWN: [(&str, &str); 3] = [
    (
        "migration_rate_limit",
        "the migration sleeps to keep to its bandwidth: raise max-bandwidth \
         (migrate_set_parameter), if the network can take more",
    ),
    (
        "nbd_",
        "the NBD server answers late: examine it and the network to it, or keep more requests in \
            flight, so that the guest waits less",
    ),
    (
        "blk_",
        "the storage below the image answers late: look at the latency of this storage, and at \
         what the image format (e.g. qcow2) adds to a request",
    ),
];

/// Where a log stands still.
pub struct LogGap;

impl Detector for LogGap {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // Where KVM's own trace is there too, that tells what the guest does meanwhile.
        if view.times_requests() || view.seconds(1).is_none() {
            return Vec::new();
        }
        view.logs().filter_map(|(file, stands)| self.of(view, file, stands)).collect()
    }
}

impl LogGap {
    fn of(&self, view: &View<'_>, file: u16, stands: &LogGaps) -> Option<Candidate> {
        let name = |id| view.name(Sym::new(file, id));
        // Accesses have a detector of their own; between two of a kind the guest does whatever
        // it does.
        let access = |id| ACCESSES.iter().any(|begin| name(id).starts_with(begin));
        let pair = |before, after| before != after && !access(before) && !access(after);
        let ((before, after), Gap { ticks, count, worst }) = stands.most(pair)?;
        let (span, lines) = (stands.span().max(1), stands.count().max(1));
        let (share, mean) = (ticks as f64 / span as f64, ticks as f64 / count.max(1) as f64);
        let others = span.saturating_sub(ticks) as f64 / (lines - count.min(lines)).max(1) as f64;
        let short = view.seconds(mean as u64).is_none_or(|mean| mean < LEAST_S);
        if count < FEWEST || share < HALF || mean < LONG * others || short {
            return None;
        }
        let (before, after) = (name(before), name(after));
        let times = grouped(&count.to_string());
        let claim = format!(
            "{times} times in the log, {after} is the line right after {before}. The \
                gaps between these two lines last {} in total ({} of the time that the log \
                covers). One such gap lasts {} on average. The \
                average gap between any two other successive lines is {}",
            view.time(ticks as f64),
            brief_percent(share),
            view.time(mean),
            view.time(others),
        );
        let (_, stamp, tid) = worst;
        let place = Place { file, stamp, cpu: NO_CPU, tid, event: "line of the log" };
        let known = KNOWN.iter().find(|(begin, _)| before.starts_with(begin));
        Some(Candidate {
            why: Why::LogStands,
            subject: format!("{before} to {after}"),
            saving: ticks,
            summary: format!(
                "the log has {times} gaps from {before} to {after}: the average gap lasts {}, and the \
                    sum of these gaps is {} of the time that the log covers",
                view.time(mean),
                brief_percent(share)
            ),
            chain: vec![link(view, file, claim, count, ticks, Some((worst.0, place)))],
            suggestion: known.map_or_else(
                || {
                    format!(
                        "find what QEMU waits for between these two events, and log that as \
                            well: start in QEMU's source at the place that logs {before}"
                    )
                },
                |(_, remedy)| (*remedy).to_string(),
            ),
            confirm: "strace -f -T -p \"$(pgrep -d, qemu-system)\" (look at the VMM's system \
                calls in that time)"
                .into(),
            max_severity: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}
