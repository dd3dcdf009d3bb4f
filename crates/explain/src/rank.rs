//! What detectors say of one subject, joined into one finding; worst first.

use crate::confirm::pasted;
use crate::detect::{Candidate, View};
use crate::diagnose::Aside;
use crate::result::{Finding, Link, Severity};
use vmeter_render::quantity::brief_percent;

/// Most words of a headline.
const MOST_WORDS: usize = 22;
/// Most parts of a subject's time that are told besides the first.
const MOST_PARTS: usize = 2;
/// Worst first; what the recording's maker did not start last of those as severe.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(a.after.cmp(&b.after))
            .then(b.called.cmp(&a.called))
            .then(b.saving_share.total_cmp(&a.saving_share))
    });
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// True for a headline of at most so many words.
pub fn fits(text: &str) -> bool {
    words(text) <= MOST_WORDS
}

/// At most [`MOST_WORDS`]: clauses at the end are left to the chain.
fn headline(mut text: String) -> String {
    if words(&text) > MOST_WORDS {
        text = without_numbers(&text);
    }
    while words(&text) > MOST_WORDS {
        let ends = [", ", "; ", ": "].into_iter().filter_map(|end| text.rfind(end));
        let Some(at) = ends.max().filter(|at| words(&text[..*at]) >= 4) else { break };
        text.truncate(at);
        // Not within brackets.
        if let Some(open) = text.rfind(" (").filter(|open| !text[*open..].contains(')')) {
            text.truncate(open);
        }
    }
    text
}

/// Threads without their numbers.
fn without_numbers(text: &str) -> String {
    let number = |word: &&str| {
        let inner = word.strip_prefix('(').and_then(|word| word.split_once(')'));
        inner.is_some_and(|(tid, _)| !tid.is_empty() && tid.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut out = String::new();
    for word in text.split(' ') {
        match number(&word) {
            true => out.push_str(word.split_once(')').map_or("", |(_, rest)| rest)),
            false => {
                if !out.is_empty() {
                    out.push(' ');
                }
                out.push_str(word);
            }
        }
    }
    out
}

/// What else a subject's time goes into, as a claim of the finding about it.
fn besides(part: &Candidate) -> Link {
    let share = part.way.first().map_or(0.0, |step| step.share.min(1.0));
    let (kind, share) = (part.why.kind().name(), brief_percent(share));
    let claim =
        format!("a further cause ({kind}, {share} of the subject's time): {}", part.summary);
    let evidence = part.chain.first().map(|link| link.evidence.clone()).unwrap_or_default();
    Link { claim, evidence }
}

/// What a detector has found, with its severity and the interval of its saving.
pub fn finding(view: &View<'_>, mut candidate: Candidate) -> Finding {
    let share = view.share(candidate.saving);
    let severity = if candidate.other_program { Severity::Low } else { candidate.severity(view) };
    // Several threads' time is no more than the time that went by.
    let span = view.evidence.span();
    let ticks = candidate.saving.min(span);
    let saving = ticks as f64;
    let count = candidate.chain.iter().find_map(|link| link.evidence.count).unwrap_or(0);
    // So many equal instances more or fewer, if nothing is known of how they differ.
    let error = candidate.error.unwrap_or(saving / (count.max(1) as f64).sqrt()) * 1.96;
    let most = saving + error;
    let bounds = [(saving - error).max(0.0), most.min(span as f64)];
    let interval = bounds.map(|ticks| view.seconds(ticks as u64));
    let (confirm, suggestion) = pasted(&candidate);
    let mut parts = std::mem::take(&mut candidate.parts);
    parts.sort_by_key(|part| std::cmp::Reverse(part.saving));
    candidate.chain.extend(parts.iter().take(MOST_PARTS).map(besides));
    let besides = parts.into_iter().take(MOST_PARTS).map(|part| part.way).collect();
    Finding {
        kind: candidate.why.kind(),
        modifier: candidate.why.modifier(),
        severity,
        subject: candidate.subject,
        summary: headline(candidate.summary),
        saving_s: view.seconds(ticks),
        saving_ci95_s: interval[0].zip(interval[1]).map(|(low, high)| [low, high]),
        saving_share: share,
        way: candidate.way,
        besides,
        chain: candidate.chain,
        suggestion,
        confirm,
        life: candidate.life,
        minus_baseline: candidate.minus_baseline,
        called: candidate.called,
        after: match candidate.aside {
            aside if candidate.other_program => aside.max(Aside::Beside) as u8,
            aside => aside as u8,
        },
    }
}
