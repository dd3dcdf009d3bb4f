//! How often the first finding is right: `score [--chain] [--full] [--vs] [--about]
//! [--without CLASS] FOLDER [NAME…]`.
//!
//! The folder holds `NAME.slow.*`, `NAME.ok.*` (the same without the fault) and `truth.json`:
//! by name `words`, patterns that a right answer's headline or claims hold, and `not`, kinds of
//! finding that would contradict it, `about`, what `--about` gives to `--comm`. Without FOLDER, `VMETER_EXPLAIN_CORPUS` names it.

#[path = "../tests/corpus/mod.rs"]
mod corpus;

use corpus::{Class, Corpus, Marks, Verdict};
use std::time::Instant;
use vmeter_explain::report::ExplainReport;
use vmeter_render::document::Detail;
use vmeter_render::Report;

fn main() {
    let (mut chain, mut full, mut vs, mut about) = (false, false, false, false);
    let mut names = Vec::new();
    let (mut class, mut second, mut versus) = (Class::Nothing, 0, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--chain" => chain = true,
            "--full" => full = true,
            "--vs" => vs = true,
            "--about" => about = true,
            "--without" => {
                let name = arguments.next().unwrap_or_default();
                let known = Class::ALL.into_iter().find(|(known, _)| *known == name);
                class = known.expect("calls, works, interrupts, queues or wakes").1;
            }
            _ => names.push(argument),
        }
    }
    let folder = match names.first() {
        Some(first) if std::path::Path::new(first).is_dir() => names.remove(0),
        _ => std::env::var(corpus::VARIABLE).expect("a folder, or VMETER_EXPLAIN_CORPUS"),
    };
    let corpus = Corpus::open(folder.as_ref()).expect("a folder with truth.json");
    let mut counts = [0; 4];
    let (mut marks, mut marks_beside) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    for fault in &corpus.faults {
        if !names.is_empty() && !names.contains(&fault.name) {
            continue;
        }
        let judged = if about { fault.judge_about() } else { fault.judge_without(class) };
        second += usize::from(judged.second);
        counts[judged.verdict as usize] += 1;
        versus += usize::from(judged.versus == Verdict::Right);
        marks.push(judged.marks);
        marks_beside.push(judged.marks_beside);
        let strict = if judged.marks.strict { " " } else { "-" };
        println!("{:<6}{strict}{:<20} {}", judged.verdict.name(), fault.name, judged.first());
        if class == Class::Nothing {
            let (versus, beside) = (judged.versus.name(), judged.beside());
            println!("       beside the twin: {versus:<6} {beside}");
            println!("       twin: {}", judged.twin());
        }
        let shown = if vs { &judged.beside } else { &judged.slow };
        for finding in shown.findings.iter().take(if chain { 3 } else { 0 }) {
            println!(
                "       {} {}: {}",
                finding.severity.name(),
                finding.kind.name(),
                finding.summary
            );
            finding.chain.iter().for_each(|link| println!("         - {}", link.claim));
        }
        if full {
            println!("{:#?}", ExplainReport::new(shown).document(Detail::Glance));
        }
    }
    let [right, half, wrong, silent] = counts;
    println!("right {right}, half {half}, wrong {wrong}, silent {silent}; {second} of the first two, {versus} beside the twin: {:.1?}", begin.elapsed());
    println!("{}", Marks::line(&marks));
    println!("beside the twin: {}", Marks::line(&marks_beside));
}
