//! CPUs that interrupt each other all the time.

use super::{Candidate, Detector, View};
use crate::result::{Evidence, Link, Severity};
use vmeter_render::quantity::{brief_percent, three_digits};

/// IPIs a second and CPU from which it is called a storm: at about 2 µs on both sides each,
/// two in a hundred of a CPU's time.
const STORM: f64 = 10_000.0;
/// What one costs the sender and the receiver together at least, s.
const COST_S: f64 = 2e-6;

/// Rates of IPIs.
pub struct IpiStorm;

impl Detector for IpiStorm {
    fn kind(&self) -> &'static str {
        "ipi-storm"
    }

    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        self.of(view).into_iter().collect()
    }
}

impl IpiStorm {
    fn of(&self, view: &View<'_>) -> Option<Candidate> {
        let seconds = view.seconds(view.evidence.span()).filter(|s| *s > 0.0)?;
        let cpus = view.evidence.cpus_seen.len().max(1) as f64;
        let sent: u64 = view.evidence.ipis.values().sum();
        let rate = sent as f64 / seconds;
        if rate / cpus < STORM {
            return None;
        }
        let (sym, most) = view.evidence.ipis.iter().max_by_key(|(sym, count)| (**count, **sym))?;
        let saving = sent as f64 * COST_S / cpus / view.seconds(1)?;
        let what = view.name(*sym);
        let claim = format!(
            "{} IPIs a second on {cpus} CPUs, {} of them for {what}",
            three_digits(rate),
            brief_percent(*most as f64 / sent.max(1) as f64)
        );
        Some(Candidate {
            kind: self.kind(),
            key: None,
            subject: format!("IPIs ({what})"),
            saving: saving as u64,
            summary: format!("CPUs interrupt each other {} times a second", three_digits(rate)),
            chain: vec![Link {
                claim,
                evidence: Evidence {
                    count: Some(sent),
                    figures: [("per_second".to_string(), rate)].into(),
                    lost_events: view.lost(sym.file),
                    ..Evidence::default()
                },
            }],
            suggestion: "find who sends them (call sites of ipi_send_cpu): wake-ups of idle CPUs, \
                         TLB flushes or work on every CPU"
                .into(),
            confirm: "perf record -e ipi:ipi_send_cpu -ag -- sleep 5 && perf report".into(),
            // A symptom: who sends them and waits is the cause.
            at_most: Some(Severity::Low),
        })
    }
}
