//! What detectors say of one subject, joined into one finding; worst first.

use crate::confirm::pasted;
use crate::detect::story::Story;
use crate::detect::{outlier, spent, Candidate, View, DETECTORS, LEAST_SHARE};
use crate::evidence::subject::{Key, Part, Subject, What, Who};
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::{Finding, Link, Severity};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, three_digits};

/// Savings from which they are some, s.
const LEAST_S: f64 = 1e-9;
/// Most words of a headline.
const MOST_WORDS: usize = 20;
/// Fewer findings than this leave room for where the time goes.
const FEW: usize = 2;
/// Other causes of the same subject are reported if they are at least this share of the first.
const ALSO: f64 = 0.2;

/// Everything that stands out, worst first.
pub fn findings(view: &View<'_>) -> Vec<Finding> {
    let candidates = DETECTORS.iter().flat_map(|detector| detector.detect(view));
    let candidates = candidates.filter(|candidate| is_asked_about(view, candidate));
    let (of_host, candidates): (Vec<_>, Vec<_>) = candidates.partition(|c| c.of_host);
    let mut by_subject: BTreeMap<Key, Vec<Candidate>> = BTreeMap::new();
    let mut others = Vec::new();
    for candidate in candidates {
        match candidate.key {
            Some(key) => by_subject.entry(key).or_default().push(candidate),
            None => others.push(candidate),
        }
    }
    of_requests(view, by_subject, &mut others);
    // Little is said of those that it is about: then where their time goes.
    if others.iter().filter(|other| !other.foreign).count() < FEW && !view.is_beyond() {
        others.extend(spent(view, &others));
    }
    if others.is_empty() {
        others = of_host;
    }
    // A bound of nothing is none.
    others.retain(|candidate| view.seconds(candidate.saving).is_none_or(|s| s >= LEAST_S));
    let mut findings: Vec<Finding> = others.into_iter().map(|c| finding(view, c)).collect();
    sort(&mut findings);
    findings
}

/// A guest's requests that are asked about.
fn asked<'a>(view: &'a View<'_>) -> Vec<(Key, &'a Subject)> {
    let vcpus = view.evidence.vcpu_groups();
    let guest = view.comm().is_none() || vcpus.iter().any(|vcpu| !view.is_foreign(*vcpu));
    match guest && (view.comm().is_none() || view.own().is_some()) {
        true => view.requests(),
        false => Vec::new(),
    }
}

/// What is said of each request, with where the way from it leads, becomes one finding.
fn of_requests(
    view: &View<'_>,
    mut by_subject: BTreeMap<Key, Vec<Candidate>>,
    others: &mut Vec<Candidate>,
) {
    let requests = asked(view);
    for (key, subject) in requests.iter().copied() {
        if let Some(told) = Story::of(view, Frame::Request(key)).and_then(|s| s.candidate(view)) {
            follow(view, (key, subject), told, &mut by_subject);
        }
    }
    let mut apart = BTreeMap::new();
    for (key, causes) in &mut by_subject {
        let gap = gap(view, *key, causes);
        apart.extend(gap.as_ref().map(|gap| (*key, gap.saving)));
        others.extend(gap);
    }
    by_subject.retain(|_, causes| !causes.is_empty());
    for (key, _) in requests {
        if outlier(view, key).is_some() {
            by_subject.entry(key).or_default();
        }
    }
    let joined = by_subject.into_iter().filter_map(|(key, causes)| {
        let mut joined = join(view, key, causes)?;
        if joined.way.is_empty() {
            let story = Story::of(view, Frame::Request(key));
            joined.way = story.map(|story| story.way(view)).unwrap_or_default();
        }
        let apart = apart.get(&key).copied().unwrap_or(0);
        joined.saving = joined.saving.saturating_sub(apart);
        joined.error = view.evidence.subjects.get(&key).map(Subject::error);
        (view.share(joined.saving) >= LEAST_SHARE || apart == 0).then_some(joined)
    });
    let (alone, joined): (Vec<_>, Vec<_>) =
        joined.partition(|candidate| candidate.why == Why::Outlier);
    // Half of it spent waiting for a CPU: the warning about the busy host says that.
    let only_busy = |candidate: &Candidate| {
        let subject = candidate.key.and_then(|key| view.evidence.subjects.get(&key));
        subject.is_some_and(|s| s.total.saturating_sub(s.net_total) >= s.total / 2)
    };
    let alone: Vec<Candidate> = alone.into_iter().filter(|c| !only_busy(c)).collect();
    // What the device model does not tell is part of its finding.
    match others.iter_mut().find(|other| other.why == Why::DeviceModel) {
        Some(model) => {
            let links = alone.into_iter().flat_map(|candidate| candidate.chain.into_iter().take(1));
            model.chain.extend(links.map(also));
        }
        None => others.extend(alone),
    }
    others.extend(joined);
}

/// True unless it is about others than those of the name that was given.
fn is_asked_about(view: &View<'_>, candidate: &Candidate) -> bool {
    let (true, Some(own)) = (view.is_about_one(), view.own()) else { return !view.is_about_one() };
    match candidate.key {
        Some(_) => view.evidence.vcpu_groups().iter().any(|vcpu| own.contains(vcpu)),
        None if candidate.whose.is_some_and(|group| own.contains(&group)) => true,
        None => own.iter().any(|group| {
            let name = view.threads(*group);
            candidate.subject == name || candidate.subject.ends_with(&format!(" {name}"))
        }),
    }
}

/// Worst first; what the recording's maker did not start last of those as severe.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(a.after.cmp(&b.after))
            .then(b.saving_share.total_cmp(&a.saving_share))
    });
}

/// What is at the end of the way from a request goes before what stands at its beginning: who
/// waits for a lock does not compute, whatever else it does.
fn follow(
    view: &View<'_>,
    (key, subject): (Key, &Subject),
    mut told: Candidate,
    by_subject: &mut BTreeMap<Key, Vec<Candidate>>,
) {
    let slow = outlier(view, key).is_some();
    if !slow && !view.is_cause(key, subject, told.saving) {
        return;
    }
    let causes = by_subject.remove(&key).unwrap_or_default();
    // Whose sleep it is, and in what the request waits for that one, is the way's to tell.
    let another = |who, part| who != Who::Own && matches!(part, Part::Timer(_));
    let elsewhere = subject.ticks(another) * 2 > subject.ticks(|_, p| matches!(p, Part::Timer(_)));
    let sleeps = (told.why.is_lock() || matches!(told.why, Why::Timer | Why::Stopped)) && elsewhere;
    let contradicts = |cause: &Candidate| {
        told.why.is_end() && matches!(cause.why, Why::Burst | Why::Grows)
            || sleeps && cause.why == Why::Timer
    };
    let mut kept: Vec<Candidate> = causes.into_iter().filter(|c| !contradicts(c)).collect();
    match kept.iter_mut().filter(|cause| cause.why != Why::Gap).max_by_key(|cause| cause.saving) {
        Some(first) => {
            first.chain.append(&mut told.chain);
            (first.way, first.culprit) = (told.way, told.culprit);
        }
        None if slow || sleeps || told.why.is_end() || told.why == Why::Timer => kept.push(told),
        None => {}
    }
    if !kept.is_empty() {
        by_subject.insert(key, kept);
    }
}

/// A single long stretch of a request, as a finding of its own. What explains the request as a
/// rule explains its longest instance too; but if that one is most of the request's time, it
/// is not what happens as a rule.
fn gap(view: &View<'_>, key: Key, causes: &mut Vec<Candidate>) -> Option<Candidate> {
    let at = causes.iter().position(|cause| cause.why == Why::Gap)?;
    let gap = causes.remove(at);
    let total = view.evidence.subjects.get(&key).map_or(0, |subject| subject.net_total);
    let told = !causes.is_empty() || outlier(view, key).is_some();
    if told && gap.saving < total / 2 {
        return None;
    }
    let beside = |cause: &Candidate| cause.saving.saturating_sub(gap.saving);
    causes.retain(|cause| view.share(beside(cause)) >= LEAST_SHARE);
    Some(gap)
}

/// One finding of all that is said of a request.
fn join(view: &View<'_>, key: Key, mut causes: Vec<Candidate>) -> Option<Candidate> {
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.saving));
    let head = outlier(view, key);
    let parts = view.evidence.subjects.get(&key).and_then(|subject| {
        let total = subject.total.max(1);
        let parts = view.parts(&subject.parts).into_iter();
        let words = parts
            .filter(|(_, ticks)| *ticks * 50 >= total)
            .take(6)
            .map(|(name, ticks)| format!("{name} {}", brief_percent(ticks as f64 / total as f64)));
        let words: Vec<String> = words.collect();
        let claim = format!("where its time goes: {}", words.join(", "));
        let link =
            view.link(key.file, claim, (subject.timed, subject.total), &[], &[subject.worst]);
        (!words.is_empty()).then_some(link)
    });
    let contrast = view
        .evidence
        .subjects
        .get(&key)
        .and_then(|subject| view.contrast(key.file, &subject.split, view.instances(key)));
    let mut causes = causes.into_iter();
    let Some(mut first) = causes.next() else {
        let mut head = head?;
        head.chain.extend(parts.into_iter().chain(contrast));
        return Some(head);
    };
    let mut own = std::mem::take(&mut first.chain).into_iter();
    if let Some(head) = head {
        // System calls are no peers of each other.
        let peers = match key.what {
            What::Call(_) => "other calls",
            _ => "its peers",
        };
        let slow = format!(
            "{}, {}× as slow as {peers}",
            first.summary,
            three_digits(view.peers(key).map_or(1.0, |peers| peers.ratio))
        );
        // The chain says it in any case.
        if words(&slow) <= MOST_WORDS {
            first.summary = slow;
        }
        first.chain.extend(head.chain);
        // So many times as slow as others of its kind is no matter of taste.
        if first.why.is_call() {
            first.at_most = None;
        }
        first.saving = first.saving.max(head.saving);
    } else {
        first.chain.extend(own.next());
    }
    first.chain.extend(parts);
    first.chain.extend(own);
    first.chain.extend(contrast);
    let least = first.saving as f64 * ALSO;
    for cause in causes.filter(|cause| cause.saving as f64 >= least) {
        first.chain.extend(cause.chain.into_iter().map(also));
    }
    Some(first)
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// At most [`MOST_WORDS`]: clauses at the end are left to the chain.
fn headline(mut text: String) -> String {
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

fn also(mut link: Link) -> Link {
    link.claim = format!("also: {}", link.claim);
    link
}

/// What a detector has found, with its severity and the interval of its saving.
pub fn finding(view: &View<'_>, candidate: Candidate) -> Finding {
    let share = view.share(candidate.saving);
    let severity = Severity::of_share(share);
    let foreign = candidate.foreign || candidate.whose.is_some_and(|whose| view.is_foreign(whose));
    let at_most = if foreign { Some(Severity::Low) } else { candidate.at_most };
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
    Finding {
        kind: candidate.why.kind(),
        modifier: candidate.why.modifier(),
        severity: at_most.map_or(severity, |most| severity.min(most)),
        subject: candidate.subject,
        summary: headline(candidate.summary),
        saving_s: view.seconds(ticks),
        saving_ci95_s: interval[0].zip(interval[1]).map(|(low, high)| [low, high]),
        saving_share: share,
        way: candidate.way,
        chain: candidate.chain,
        suggestion,
        confirm,
        life: candidate.life,
        beyond: candidate.beyond,
        after: if foreign { 2 } else { u8::from(candidate.aside) },
    }
}
