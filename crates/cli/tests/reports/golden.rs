//! Snapshots of whole outputs: a change of looks, or of a field, is seen in review.

use crate::reports::{on_screen, results, text};
use insta::assert_snapshot;
use unicode_width::UnicodeWidthStr;
use vmeter_lab::bench::report::BenchReport;
use vmeter_lab::boot::report::{BootReport, BootView};
use vmeter_model::result::BootResult;
use vmeter_render::{Screen, OUTPUTS};

fn every_report_as(output: &str) {
    results::each(&mut |name, report| {
        assert_snapshot!(format!("{name}_{output}"), text(output, report));
    });
}

#[test]
fn json() {
    every_report_as("json");
}

#[test]
fn csv() {
    every_report_as("csv");
}

#[test]
fn markdown() {
    every_report_as("markdown");
}

#[test]
fn terminal_of_80_columns() {
    every_report_as("text");
}

/// A boot with all its tables.
fn long(result: &BootResult) -> BootReport<'_> {
    BootReport { result, view: BootView { long: true, ..BootView::default() } }
}

#[test]
fn boot_in_full() {
    assert_snapshot!(on_screen(Screen::PLAIN, &long(&results::boot::boot(2, true))));
}

#[test]
fn boot_in_full_at_120_columns() {
    let screen = Screen { width: 120, ..Screen::PLAIN };
    assert_snapshot!(on_screen(screen, &long(&results::boot::boot(10, true))));
}

#[test]
fn a_boot_fits_a_screen_of_24_lines() {
    let failed = results::boot::failed_boot();
    for result in [results::boot::boot(1, false), results::boot::boot(10, true), failed] {
        let shown = on_screen(Screen::PLAIN, &BootReport::new(&result));
        assert!(shown.lines().count() <= 24, "{}\n{shown}", shown.lines().count());
    }
}

#[test]
fn one_boot_in_ascii_and_colour() {
    let screen = Screen { colour: true, ascii: true, ..Screen::PLAIN };
    let shown = on_screen(screen, &BootReport::new(&results::boot::boot(1, false)));
    assert!(shown.is_ascii());
    assert_snapshot!(shown.replace('\x1b', "^"));
}

#[test]
fn failed_boot() {
    assert_snapshot!(on_screen(Screen::PLAIN, &BootReport::new(&results::boot::failed_boot())));
}

#[test]
fn bench_at_120_columns() {
    let screen = Screen { width: 120, ..Screen::PLAIN };
    assert_snapshot!(on_screen(screen, &BenchReport::new(&results::boot::bench())));
}

#[test]
fn no_line_is_wider_than_the_screen_and_none_obeys_a_guest() {
    let mut wide = Vec::new();
    results::each(&mut |name, report| {
        for width in [60, 72, 80, 100, 120, 160] {
            for ascii in [false, true] {
                let screen = Screen { width, ascii, ..Screen::PLAIN };
                let shown = on_screen(screen, report);
                // A command is left in one piece, to be copied.
                let lines = shown.lines().filter(|line| !line.starts_with("try: "));
                let wider = lines.filter(|line| line.width() > width);
                wide.extend(wider.map(|line| format!("{name}, {width}: {line}")));
            }
        }
        for output in ["html", "markdown", "csv", "json"] {
            let whole = text(output, report);
            assert!(!whole.contains('\x1b'), "{name}, {output}: an escape of the guest's");
        }
    });
    assert!(wide.is_empty(), "wider than the screen:\n{}", wide.join("\n"));
}

#[test]
fn outputs_have_names_and_endings_of_their_own() {
    let mut seen = std::collections::HashSet::new();
    for output in OUTPUTS {
        assert!(seen.insert(output.name().to_owned()), "{}", output.name());
        for ending in output.extensions() {
            assert!(seen.insert(format!(".{ending}")), "{ending}");
            let path = format!("x.{}", ending.to_uppercase());
            let found = vmeter_render::by_extension(path.as_ref()).map(|o| o.name());
            assert_eq!(found, Some(output.name()));
        }
    }
}
