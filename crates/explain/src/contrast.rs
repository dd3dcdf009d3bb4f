//! A trace against that of the same without the fault: what both have is not the difference.

use crate::rank;
use crate::result::{Evidence, ExplainResult, Finding, Link, Severity};
use vmeter_render::quantity::brief_percent;

/// What the twin has of this share of it is no difference.
const BOTH: f64 = 0.6;

/// Weighs each finding that is not a difference by itself against the twin's of the same kind and subject.
pub fn contrast(result: &mut ExplainResult, twin: &ExplainResult) {
    for finding in result.findings.iter_mut().filter(|finding| !finding.minus_baseline) {
        let same = |other: &&Finding| {
            (other.kind, other.modifier) == (finding.kind, finding.modifier)
                && common(&other.subject) == common(&finding.subject)
        };
        let before = twin.findings.iter().filter(same).map(|other| other.saving_share);
        weigh(finding, before.fold(0.0, f64::max));
    }
    rank::sort(&mut result.findings);
}

fn weigh(finding: &mut Finding, before: f64) {
    let now = finding.saving_share;
    let claim = if before > 0.0 {
        format!(
            "{} of the traced time, against {} in the baseline trace",
            brief_percent(now),
            brief_percent(before)
        )
    } else {
        format!(
            "{} of the traced time; the baseline trace has nothing of this kind",
            brief_percent(now)
        )
    };
    let figures = [("share".to_string(), now), ("share_of_twin".to_string(), before)];
    let evidence = Evidence { figures: figures.into(), ..Evidence::default() };
    finding.chain.push(Link { claim, evidence });
    if before >= BOTH * now {
        finding.severity = Severity::Low;
        finding.saving_share = (now - before).max(0.0);
    } else {
        // What other programs did this time is no difference either: what was low stays so.
        finding.saving_share = now - before;
    }
    let left = finding.saving_share / now.max(f64::MIN_POSITIVE);
    finding.saving_s = finding.saving_s.map(|saving| saving * left);
    finding.saving_ci95_s = finding.saving_ci95_s.map(|interval| interval.map(|s| s * left));
}

/// A subject without numbers: thread ids differ from trace to trace.
fn common(subject: &str) -> String {
    match subject.split_once(" (") {
        Some((name, rest)) if rest.trim_end_matches(')').bytes().all(|b| b.is_ascii_digit()) => {
            name.to_string()
        }
        _ => subject.to_string(),
    }
}
