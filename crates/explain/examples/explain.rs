//! Explains traces and says how fast: `explain [--screen] [--cpu-hz HZ] [--html FILE] [--comm NAME] [--vs FILE] FILE…`.

use std::time::Instant;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::{explain, Options};
use vmeter_render::outputs::html::Html;
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output, Screen};

fn main() {
    let mut options = Options::default();
    let (mut files, mut html, mut screen) = (Vec::new(), None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cpu-hz" => options.cpu_hz = arguments.next().and_then(|v| v.parse().ok()),
            "--comm" => options.comm = arguments.next(),
            "--vs" => options.vs = arguments.next().map(Into::into),
            "--screen" => screen = true,
            "--html" => html = arguments.next(),
            _ => files.push(argument.into()),
        }
    }
    let begin = Instant::now();
    let result = explain(&files, &options).expect("traces");
    if screen {
        let terminal = Terminal { screen: Screen { width: 100, ..Screen::PLAIN } };
        terminal.write(&ExplainReport::new(&result), &mut std::io::stdout()).expect("an output");
        return;
    }
    for finding in &result.findings {
        println!("{} {}: {}", finding.severity.name(), finding.kind.name(), finding.summary);
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
