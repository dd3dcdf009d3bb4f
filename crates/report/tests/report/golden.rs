//! Snapshots of whole outputs: a change of looks is seen in review.

use crate::{fixture, on_screen, text};
use insta::assert_snapshot;
use unicode_width::UnicodeWidthStr;
use vmeter_render::{Screen, OUTPUTS};
use vmeter_report::{BenchReport, BootReport};

#[test]
fn boot_at_80_columns() {
    assert_snapshot!(on_screen(Screen::PLAIN, &BootReport::new(&fixture::boot(10, true))));
}

#[test]
fn boot_at_120_columns() {
    let screen = Screen { width: 120, ..Screen::PLAIN };
    assert_snapshot!(on_screen(screen, &BootReport::new(&fixture::boot(10, true))));
}

#[test]
fn one_boot_in_ascii_and_colour() {
    let screen = Screen { colour: true, ascii: true, ..Screen::PLAIN };
    let shown = on_screen(screen, &BootReport::new(&fixture::boot(1, false)));
    assert!(shown.is_ascii());
    assert_snapshot!(shown.replace('\x1b', "^"));
}

#[test]
fn failed_boot() {
    assert_snapshot!(on_screen(Screen::PLAIN, &BootReport::new(&fixture::failed_boot())));
}

#[test]
fn bench_at_80_columns() {
    assert_snapshot!(on_screen(Screen::PLAIN, &BenchReport::new(&fixture::bench())));
}

#[test]
fn bench_at_120_columns() {
    let screen = Screen { width: 120, ..Screen::PLAIN };
    assert_snapshot!(on_screen(screen, &BenchReport::new(&fixture::bench())));
}

#[test]
fn boot_markdown() {
    assert_snapshot!(text("markdown", &BootReport::new(&fixture::boot(10, true))));
}

#[test]
fn bench_markdown() {
    assert_snapshot!(text("markdown", &BenchReport::new(&fixture::bench())));
}

#[test]
fn boot_csv() {
    assert_snapshot!(text("csv", &BootReport::new(&fixture::boot(1, true))));
}

#[test]
fn bench_csv() {
    assert_snapshot!(text("csv", &BenchReport::new(&fixture::bench())));
}

#[test]
fn boot_json() {
    assert_snapshot!(text("json", &BootReport::new(&fixture::boot(1, true))));
}

#[test]
fn bench_json() {
    assert_snapshot!(text("json", &BenchReport::new(&fixture::bench())));
}

#[test]
fn no_line_is_wider_than_the_screen() {
    let boot = fixture::boot(10, true);
    let bench = fixture::bench();
    for width in [60, 72, 80, 100, 120, 160] {
        for ascii in [false, true] {
            let screen = Screen { width, ascii, ..Screen::PLAIN };
            let shown = on_screen(screen, &BootReport::new(&boot))
                + &on_screen(screen, &BenchReport::new(&bench));
            for line in shown.lines() {
                assert!(line.width() <= width, "{} > {width}: {line}", line.width());
            }
        }
    }
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
