//! Explains traces and says how fast: `explain [--cpu-hz HZ] [--html FILE] [--comm NAME] [--vs FILE] FILE…`.

use std::time::Instant;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::{explain, Options};
use vmeter_render::outputs::html::Html;
use vmeter_render::Output;

fn main() {
    let mut options = Options::default();
    let (mut files, mut html) = (Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cpu-hz" => options.cpu_hz = arguments.next().and_then(|v| v.parse().ok()),
            "--comm" => options.comm = arguments.next(),
            "--vs" => options.vs = arguments.next().map(Into::into),
            "--html" => html = arguments.next(),
            _ => files.push(argument.into()),
        }
    }
    let begin = Instant::now();
    let result = explain(&files, &options).expect("traces");
    for finding in &result.findings {
        println!("{} {}: {}", finding.severity.name(), finding.kind, finding.summary);
        finding.chain.iter().for_each(|link| println!("  - {}", link.claim));
    }
    result.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    if let Some(path) = html {
        let mut page = std::fs::File::create(path).expect("a file");
        Html.write(&ExplainReport::new(&result), &mut page).expect("a page");
    }
    let events: u64 = result.files.iter().map(|file| file.events).sum();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    eprintln!("{events} events in {:.2?}; {peak}", begin.elapsed());
}
