//! Strings that a guest, a trace or a run folder may hold, in every place that
//! takes one: no output lets them act.

use crate::reports::{on_screen, results, text};
use proptest::prelude::*;
use vmeter_lab::bench::report::BenchReport;
use vmeter_lab::boot::report::BootReport;
use vmeter_lab::boot::report::BootView;
use vmeter_lab::boot::report::TreeView;
use vmeter_model::result::{BenchResult, BootResult};
use vmeter_model::run::Outcome;
use vmeter_render::{Report, Screen};

/// Markup, escapes, formulas and anything at all.
fn hostile() -> impl Strategy<Value = String> {
    let fragments = prop_oneof![
        Just("\x1b[2J\x1b]0;owned\x07".to_owned()),
        Just("\u{9b}31m".to_owned()),
        Just("\u{202e}\u{2066}\u{200b}".to_owned()),
        Just("<script>alert(1)</script>".to_owned()),
        Just("\"><img src=x onerror=alert(1)>".to_owned()),
        Just("' onload='x".to_owned()),
        Just("&lt;b&gt;".to_owned()),
        Just("| `a` | **b** [x](http://x) @user #1".to_owned()),
        Just("```\n```\n~~~".to_owned()),
        Just("=cmd|' /C calc'!A0".to_owned()),
        Just("\r\n,\"".to_owned()),
        any::<String>(),
    ];
    proptest::collection::vec(fragments, 1..4).prop_map(|parts| parts.concat())
}

/// A boot with the text in every place that takes one.
fn boot_with(text: &str) -> BootResult {
    let mut result = results::boot::boot(2, true);
    let put = |place: &mut String| *place = text.to_owned();
    for run in &mut result.runs {
        for span in run.timeline.spans.iter_mut().chain(&mut run.timeline.overlapping) {
            put(&mut span.name);
            put(&mut span.source);
        }
        run.timeline.phases.iter_mut().for_each(|(name, _)| put(name));
        run.timeline.marks.iter_mut().for_each(|(_, mark)| put(mark));
        run.timeline.warnings = vec![text.to_owned()];
        run.record.warnings = vec![text.to_owned()];
        run.record.argv = vec![text.to_owned()];
        run.record.injected = vec![text.to_owned()];
        put(&mut run.record.label);
        put(&mut run.record.sources[0].clock);
    }
    result.runs[0].record.outcome = Outcome::Panicked { line: text.to_owned() };
    result.phases.iter_mut().for_each(|phase| put(&mut phase.name));
    for activity in &mut result.activities {
        put(&mut activity.name);
        put(&mut activity.phase);
    }
    result.counts = result.counts.into_values().map(|v| (text.to_owned(), v)).collect();
    result.machine.chosen = vec![vmeter_model::ResolvedOption::new(text, text, text)];
    result.envelope.host = [(text.to_owned(), text.into())].into();
    put(&mut result.machine.label);
    put(&mut result.saved_in);
    put(&mut result.envelope.started_at);
    result.said = vec![text.to_owned()];
    result.warnings = vec![text.to_owned()];
    result.hints = vec![text.to_owned()];
    result
}

fn bench_with(text: &str) -> BenchResult {
    let mut result = results::boot::bench();
    for machine in &mut result.machines {
        machine.label = text.to_owned();
        machine.failures = vec![crate::reports::results::boot::failed_run(
            0,
            Outcome::TimedOut { last: text.to_owned() },
        )];
        machine.machine.argv = vec![text.to_owned()];
    }
    for comparison in &mut result.comparisons {
        comparison.b = text.to_owned();
    }
    result
}

fn every_view() -> BootView {
    let tree = Some(TreeView { run: None, min_duration: 0 });
    BootView { blame: true, critical_chain: true, tree, ..BootView::default() }
}

/// Nothing but printable characters and line ends.
fn assert_harmless(output: &str) {
    for c in output.chars().filter(|c| *c != '\n') {
        assert!(!vmeter_render::text::is_hostile(c), "{c:?} in the output");
    }
}

/// Tags outside the fixed set, or attributes that run code or load something.
fn assert_only_own_markup(page: &str) {
    const TAGS: &[&str] = &[
        "!doctype", "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p",
        "dl", "dt", "dd", "small", "code", "b", "div", "span", "table", "thead", "tbody", "tr",
        "th", "td", "ul", "li", "details", "summary", "footer", "svg", "rect", "line", "text",
        "circle", "polyline",
    ];
    for tag in page.split('<').skip(1) {
        let inside = tag.split('>').next().unwrap_or_default();
        let name = inside.trim_start_matches('/');
        let name = name.split([' ', '/']).next().unwrap_or_default();
        assert!(TAGS.contains(&name), "<{inside}>");
        // Quotes pair up, so nothing escaped its attribute.
        assert_eq!(inside.matches('"').count() % 2, 0, "<{inside}>");
        let outside_quotes: String = inside.split('"').step_by(2).collect();
        for bad in [" on", "href", "src=", "url("] {
            assert!(!outside_quotes.contains(bad), "<{inside}>");
        }
    }
}

fn check(report: &dyn Report) {
    assert_harmless(&on_screen(Screen::PLAIN, report));
    let ascii = on_screen(Screen { ascii: true, ..Screen::PLAIN }, report);
    assert!(ascii.is_ascii());
    let page = text("html", report);
    assert_harmless(&page);
    assert_only_own_markup(&page);
    assert_harmless(&text("csv", report));
    assert_harmless(&text("json", report));
    let markdown = text("markdown", report);
    assert_harmless(&markdown);
    let mut fence: Option<&str> = None;
    for line in markdown.lines() {
        match fence {
            Some(open) if line == open => fence = None,
            Some(_) => {}
            None if line.starts_with("```") => fence = Some(line.trim_end_matches("text")),
            None => assert!(!line.contains("<script") || line.contains('`'), "{line}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_string_acts_on_its_reader(text in hostile()) {
        let boot = boot_with(&text);
        check(&BootReport::new(&boot));
        check(&BootReport { result: &boot, view: every_view() });
        check(&BenchReport::new(&bench_with(&text)));
    }

    #[test]
    fn json_keeps_every_string_exactly(hostile in hostile()) {
        let json = text("json", &BootReport::new(&boot_with(&hostile)));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        prop_assert_eq!(json["saved_in"].as_str(), Some(hostile.as_str()));
        prop_assert_eq!(json["runs"][0]["spans"][1]["name"].as_str(), Some(hostile.as_str()));
    }

    #[test]
    fn no_csv_cell_begins_a_formula(hostile in hostile()) {
        let table = text("csv", &BootReport::new(&boot_with(&hostile)));
        let mut rows = 0;
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        for row in reader.records() {
            let row = row.expect("a row as long as the header");
            rows += 1;
            for cell in row.iter().filter(|cell| cell.parse::<f64>().is_err()) {
                let cell = cell.trim_start();
                prop_assert!(!cell.starts_with(['=', '+', '@']), "{}", cell);
                // What begins like an option calls nothing.
                prop_assert!(!cell.starts_with('-') || !cell.contains(['(', '|', '!']), "{}", cell);
            }
        }
        prop_assert!(rows > 40);
    }

    /// A table of the document stays a table: no row gains or loses a cell.
    #[test]
    fn markdown_tables_keep_their_columns(hostile in hostile()) {
        let page = text("markdown", &BenchReport::new(&bench_with(&hostile)));
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let table: Vec<usize> =
            page.lines().filter(|l| l.starts_with("| ") || l.starts_with("|:")).map(cells).collect();
        prop_assert!(table.len() >= 5);
        prop_assert!(table[..5].iter().all(|c| *c == table[0]), "{:?}", table);
    }

    /// Estimates and times may be anything that a file can hold.
    #[test]
    fn no_number_panics(value in any::<f64>(), time in any::<i64>(), n in 0usize..4) {
        let mut result = results::boot::boot(2, true);
        let mut phase = result.phases[1].clone();
        phase.share = value;
        phase.estimate = vmeter_model::Estimate {
            mean: value, median: value, sd: value, ci95: [value, -value], min: value, max: value, n,
        };
        result.total = Some(phase.estimate);
        result.activities[0].estimate = phase.estimate;
        result.activities[0].insns = Some(phase.estimate);
        result.counts.insert("x".into(), phase.estimate);
        result.phases.push(phase);
        result.outliers = vec![usize::MAX];
        let run = &mut result.runs[0];
        run.timeline.total = time;
        run.timeline.spans[3].start = time;
        run.timeline.spans[5].end = time;
        run.timeline.overlapping[0].end = time;
        run.timeline.marks.push((time, "late".into()));
        run.record.exec_ns = time;
        for view in [BootView::default(), every_view()] {
            let report = BootReport { result: &result, view };
            for output in vmeter_render::OUTPUTS {
                output.write(&report, &mut Vec::new()).expect("a Vec takes everything");
            }
        }
        let mut bench = results::boot::bench();
        bench.machines[0].samples_s = vec![value, time as f64];
        bench.machines[0].estimate.mean = value;
        bench.comparisons[0].p_value = value;
        check(&BenchReport::new(&bench));
    }
}
