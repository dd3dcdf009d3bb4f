//! Two traces compared.

use vmeter_render::document::{Block, Document};
use vmeter_render::quantity::{p_value, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_trace::stat::versus::{Per, Test, Versus, VersusRow};

/// Adjusted p-values up to this are differences.
pub(super) const ALPHA: f64 = 0.05;

fn differs(test: Option<&Test>) -> bool {
    test.is_some_and(|t| t.p_adjusted <= ALPHA)
}

pub(super) fn document(document: &mut Document, versus: &Versus, shown: usize) {
    let found: Vec<&VersusRow> = versus
        .rows
        .iter()
        .filter(|r| differs(r.counts.as_ref()) || differs(r.times.as_ref()))
        .collect();
    let slower = found.iter().filter(|r| differs(r.times.as_ref())).count();
    let (a, b) = (versus.a.join(" + "), versus.b.join(" + "));
    document.answer = match found.first() {
        None => format!("No difference found between {a} and {b}."),
        Some(first) => format!(
            "{} {a} and {b} differ in {} of {} rows. The durations differ in {slower} of the \
             differing rows. The total time differs most in the row of {} {}.",
            if versus.is_of_two() { "The recordings" } else { "The machines recorded in" },
            found.len(),
            versus.rows.len(),
            kind(first.table),
            label(first)
        ),
    };
    if !found.is_empty() {
        document.heading("What differs", "the largest difference of total time first");
        document.push(Block::Table(table(versus, &found, shown)));
    }
    let per = match versus.per {
        Per::Second => "a second of the trace",
        Per::Trace => "a trace",
    };
    let tests = format!(
        "vmeter adjusts the p-values of all {} tests with the method of Benjamini and Hochberg; \
            the table shows only the rows whose adjusted p is below {ALPHA}.",
        versus.tests
    );
    document.push(Block::Paragraph(if versus.is_of_two() {
        format!(
            "Counts ({per}): conditional test of two Poisson rates. Times: rank-sum test. \
             Because events come in bursts, vmeter also divides each trace into slices of equal \
                 length, compares the slices by Welch's test, and reports the larger of the two \
                 p-values. {tests} Even two recordings of the same \
             machine differ. To compare machines, give two or more recordings of each: FILE \
             FILE --vs OTHER --vs OTHER."
        )
    } else {
        format!(
            "vmeter tests counts ({per}) by a quasi-Poisson rate ratio, whose error comes from the \
                scatter between recordings. For times, vmeter takes each recording's mean of \
                log(time), and compares these means by Welch's test. {tests}"
        )
    }));
}

/// What a row of a table is, in one word.
fn kind(table: &str) -> &str {
    match table {
        "ports" => "port",
        "mmio" => "address",
        "msrs" => "MSR",
        "exits" => "VMEXIT",
        "userspace_exits" => "exit",
        "hypercalls" => "hypercall",
        "syscalls" => "system call",
        "ioctls" => "ioctl",
        "irqs" | "vectors" => "interrupt",
        "ipis" => "IPI",
        "ipi_sends" => "IPI sent",
        "works" => "work",
        other => other,
    }
}

fn label(row: &VersusRow) -> String {
    let number = row.port.map(u64::from).map(|port| format!("{port:#x}"));
    let parts = [number.as_deref(), Some(row.name.as_str()), row.direction];
    let parts: Vec<&str> = parts.into_iter().flatten().filter(|p| !p.is_empty()).collect();
    parts.join(" ")
}

fn table(versus: &Versus, found: &[&VersusRow], shown: usize) -> Table {
    let mut table = Table::new(vec![
        Column::text("", 0),
        Column { shrinks_to: Some(14), ..Column::text("what", 0) },
        Column::number("before", 2),
        Column::number(if versus.per == Per::Second { "after, /s" } else { "after" }, 2),
        Column::number("count", 0),
        Column::number("p", 3),
        Column::number("median", 1),
        Column::number("after", 1),
        Column::number("time", 0),
        Column::number("p", 3),
    ]);
    for row in found.iter().take(shown) {
        let count = |side: &vmeter_trace::stat::versus::Side| match versus.per {
            Per::Second => side.per_s.map_or(Cell::Empty, |rate| Cell::Text(spelled(rate))),
            Per::Trace => Cell::Inline(Quantity::exact(side.count as f64, Unit::Count)),
        };
        let time = |s: Option<f64>| {
            s.map_or(Cell::Empty, |s| Cell::Inline(Quantity::exact(s, Unit::Seconds)))
        };
        table.row(vec![
            Cell::Toned(kind(row.table).into(), Tone::Muted),
            Cell::Name(label(row)),
            count(&row.a),
            count(&row.b),
            ratio(row.counts.as_ref()),
            p(row.counts.as_ref()),
            time(row.a.median_s),
            time(row.b.median_s),
            ratio(row.times.as_ref()),
            p(row.times.as_ref()),
        ]);
    }
    if found.len() > shown {
        let left = format!("{} more", found.len() - shown);
        table.toned_row(Tone::Muted, vec![Cell::Empty, Cell::Text(left)]);
    }
    table
}

/// A rate with three digits.
fn spelled(rate: f64) -> String {
    match rate {
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 10.0 => format!("{r:.1}"),
        r => format!("{r:.2}"),
    }
}

/// The ratio where it is a difference.
fn ratio(test: Option<&Test>) -> Cell {
    match test {
        Some(test) if differs(Some(test)) => match test.ratio {
            Some(0.0) => Cell::Text("gone".into()),
            Some(ratio) => Cell::Text(format!("{ratio:.2}×")),
            None => Cell::Text("new".into()),
        },
        Some(_) => Cell::Toned("=".into(), Tone::Muted),
        None => Cell::Empty,
    }
}

fn p(test: Option<&Test>) -> Cell {
    test.map_or(Cell::Empty, |t| Cell::Text(p_value(t.p_adjusted)))
}
