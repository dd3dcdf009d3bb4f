//! Planted faults, judged by their truths; twins do not alarm.

mod corpus;

use corpus::{Corpus, Verdict, VARIABLE};
use std::path::Path;
use vmeter_explain::contrast::contrast;
use vmeter_explain::result::Severity;

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
        let first = judged.slow.findings.first();
        let words = first.map_or(0, |first| first.summary.split_whitespace().count());
        assert!(words <= 32, "a headline: {}", judged.first());
        let mut against = judged.slow.clone();
        contrast(&mut against, &judged.slow);
        let loud = against.findings.iter().filter(|f| f.severity > Severity::Low);
        assert_eq!(loud.count(), 0, "against itself nothing is different: {}", fault.name);
    }
    (right, corpus.faults.len())
}

#[test]
fn planted_faults_come_first() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain");
    assert_eq!(judged(Path::new(folder)), (6, 6));
}

#[test]
fn so_do_those_of_another_folder() {
    let Some(folder) = std::env::var_os(VARIABLE) else { return };
    let (right, all) = judged(Path::new(&folder));
    assert!(right * 10 >= all * 9, "{right} of {all}");
}
