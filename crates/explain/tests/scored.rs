//! Planted faults, judged by their truths; twins do not alarm.

use crate::corpus;

use corpus::{Class, Corpus, Verdict, VARIABLE};
use std::path::Path;
use std::process::Command;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::result::{ExplainResult, Severity};
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output, Screen};

/// Judges a folder; gives how many are right, of how many.
fn judged(folder: &Path) -> (usize, usize) {
    let corpus = Corpus::open(folder).expect("a folder with truth.json");
    let mut right = 0;
    for fault in &corpus.faults {
        let judged = fault.judge();
        right += usize::from(judged.verdict == Verdict::Right);
        println!("{} {}: {}", judged.verdict.name(), fault.name, judged.first());
        let alarm = judged.twin_severity();
        assert!(alarm < Some(Severity::High), "{}'s twin: {}", fault.name, judged.twin());
        for result in [&judged.slow, &judged.beside, &judged.ok] {
            reads_well(&fault.name, result);
        }
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join(fault.slow.file_name().expect("a name"));
        std::fs::copy(&fault.slow, &copy).expect("a copy");
        let against = fault.beside(&copy);
        let loud = against.findings.iter().filter(|f| f.severity > Severity::Low);
        assert_eq!(loud.count(), 0, "against itself nothing is different: {}", fault.name);
    }
    (right, corpus.faults.len())
}

/// A headline that is one; a screenful of lines; seconds, a place, and a way to confirm.
fn reads_well(name: &str, result: &ExplainResult) {
    pastes(name, result);
    for finding in &result.findings {
        let headline = &finding.summary;
        assert!(headline.split_whitespace().count() <= 22, "{name}: {headline}");
        assert!(
            !finding.suggestion.is_empty() && !finding.confirm.is_empty(),
            "{name}: {headline}"
        );
        let [low, high] = finding.saving_ci95_s.expect("an interval");
        let saving = finding.saving_s.expect("seconds");
        assert!(low <= saving && saving <= high * 1.001, "{name}: {low} {saving} {high}");
        let one = ExplainResult { findings: vec![finding.clone()], ..ExplainResult::default() };
        let mut screen = Vec::new();
        Terminal { screen: Screen { width: 100, ..Screen::PLAIN } }
            .write(&ExplainReport::new(&one), &mut screen)
            .expect("a Vec takes everything");
        let screen = String::from_utf8(screen).expect("UTF-8");
        let body = screen.lines().skip_while(|line| !line.starts_with("1. "));
        let lines = body.take_while(|line| !line.starts_with("Traces")).filter(|l| !l.is_empty());
        assert!(lines.count() <= 15, "{name}:\n{screen}");
        let once = headline.get(1..).unwrap_or_default();
        let flat = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.matches(once).count() <= 1, "{name}:\n{screen}");
        assert!(!flat.contains("cycles"), "{name}:\n{screen}");
        let placed = finding.chain.iter().any(|link| !link.evidence.events.is_empty());
        assert!(!placed || flat.contains("after the trace's first event"), "{name}:\n{screen}");
    }
}

/// The shell understands every command that would confirm something.
fn pastes(name: &str, result: &ExplainResult) {
    let lines: Vec<&str> = result.findings.iter().map(|f| f.confirm.as_str()).collect();
    let script = lines.join("\n");
    assert!(!script.contains(" ("), "{name}: {script}");
    let Ok(out) = Command::new("bash").args(["-n", "-c", &script]).output() else { return };
    assert!(out.status.success(), "{name}: {script}: {out:?}");
}

/// How many are right or half right where a class of events is missing; what is missing is named.
fn judged_without(folder: &Path, class: Class) -> (usize, usize) {
    let corpus = Corpus::open(folder).expect("a folder with truth.json");
    let (mut good, mut all) = (0, 0);
    for fault in &corpus.faults {
        // Of strace's lines nothing would remain.
        if fault.slow.to_string_lossy().contains(".strace.") {
            continue;
        }
        let judged = fault.judge_without(class);
        let good_one = matches!(judged.verdict, Verdict::Right | Verdict::Half);
        (good, all) = (good + usize::from(good_one), all + 1);
        println!("{class:?}: {} {}: {}", judged.verdict.name(), fault.name, judged.first());
        let claims = judged.slow.findings.iter().flat_map(|f| &f.chain).map(|link| &link.claim);
        let named = |text: &String| text.contains(class.named());
        assert!(claims.chain(&judged.slow.warnings).any(named), "{class:?}: {}", fault.name);
        reads_well(&fault.name, &judged.slow);
    }
    (good, all)
}

#[test]
fn what_is_missing_weakens_an_answer_and_is_named() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain");
    for class in [Class::Calls, Class::Works, Class::Interrupts, Class::Queues, Class::Wakes] {
        let (good, all) = judged_without(Path::new(folder), class);
        // Which call it is, nothing else says.
        let least = if class == Class::Calls { 5 } else { 7 };
        assert!(good * 10 >= all * least, "{class:?}: {good} of {all}");
    }
}

/// Asleep in the D state is not yet asleep for a disk, and who had the CPU before woke nobody.
#[test]
fn without_wake_ups_nobody_is_said_to_wake() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain");
    let corpus = Corpus::open(Path::new(folder)).expect("a folder with truth.json");
    let kernel = |fault: &&corpus::Fault| !fault.slow.to_string_lossy().contains(".strace.");
    for fault in corpus.faults.iter().filter(kernel) {
        let judged = fault.judge_without(Class::Wakes);
        for finding in &judged.slow.findings {
            let summary = &finding.summary;
            let disk = summary.contains("for the disk") && !summary.contains("sync");
            assert!(!disk && !summary.contains("waits in read for"), "{}: {summary}", fault.name);
        }
    }
}

#[test]
fn planted_faults_come_first() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain");
    assert_eq!(judged(Path::new(folder)), (15, 15));
}

#[test]
fn so_do_those_of_another_folder() {
    let Some(folder) = std::env::var_os(VARIABLE) else { return };
    let (right, all) = judged(Path::new(&folder));
    assert!(right * 10 >= all * 9, "{right} of {all}");
}
