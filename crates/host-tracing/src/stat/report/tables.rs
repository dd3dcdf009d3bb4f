//! A trace's rows as tables of 80 columns.

use vmeter_render::quantity::{percent, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_trace::stat::report::Runstates;
use vmeter_trace::stat::{Report, Row};

/// A mean this many times that of its peers stands out.
const OUTLIER: f64 = 5.0;
/// Rows seen less often than this prove nothing by their mean.
const MIN_COUNT: u64 = 10;

/// Rows of any table, those that took longest first.
pub(super) fn rows(rows: &[Row], report: &Report, shown: usize) -> Table {
    let any = |has: fn(&Row) -> bool| rows.iter().any(has);
    let (numbers, directions) = (any(|r| number(r).is_some()), any(|r| r.direction.is_some()));
    let (devices, cycles) = (any(|r| r.device.is_some()), any(|r| r.mean_cycles.is_some()));
    let (times, peers) = (any(|r| r.total_s.is_some()), any(|r| r.ratio_to_peers.is_some()));
    let cut = any(|r| r.cut > 0);
    let names = rows.iter().any(|r| !shown_name(r, numbers).is_empty());
    let mut columns = Vec::new();
    let mut column = |present: bool, column: Column| {
        if present {
            columns.push(column);
        }
    };
    column(numbers, Column::number("at", 0));
    column(names, Column { shrinks_to: Some(22), ..Column::text("name", 0) });
    column(devices, Column { shrinks_to: Some(12), ..Column::text("device", 0) });
    column(directions, Column::text("", 0));
    column(true, Column::number("count", 0));
    column(cut, Column::number("cut", 0));
    column(times, Column::number("total", 1));
    column(times, Column::number("mean", 4));
    column(cycles, Column::number("cycles", if times { 6 } else { 0 }));
    column(times, Column::number("median", 1));
    column(times, Column::number("p99", 3));
    column(times || cycles, Column::number("share", 5));
    column(peers, Column::number("vs peers", 2));
    let mut table = Table::new(columns);
    let mut order: Vec<&Row> = rows.iter().collect();
    let weight = |row: &Row| row.share.or(row.total_s).unwrap_or(0.0);
    order.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then(b.count.cmp(&a.count)));
    for row in order.iter().take(shown) {
        let mut cells = Vec::new();
        let mut cell = |present: bool, cell: Cell| {
            if present {
                cells.push(cell);
            }
        };
        cell(numbers, number(row).map_or(Cell::Empty, |n| Cell::Name(format!("{n:#x}"))));
        cell(names, Cell::Name(shown_name(row, numbers)));
        cell(devices, row.device.clone().map_or(Cell::Empty, Cell::Name));
        cell(directions, Cell::Text(row.direction.unwrap_or_default().into()));
        cell(true, count(Some(row.count)));
        cell(cut, count((row.cut > 0).then_some(row.cut)));
        cell(times, time(row.total_s));
        cell(times, time(row.mean_s));
        cell(cycles, row.mean_cycles.map_or(Cell::Empty, |c| Cell::Text(format!("{c:.0}"))));
        cell(times, time(row.median_s));
        cell(times, time(row.p99_s));
        cell(times || cycles, row.share.map_or(Cell::Empty, Cell::Share));
        cell(peers, row.ratio_to_peers.map_or(Cell::Empty, |r| Cell::Text(format!("{r:.1}×"))));
        table.toned_row(tone(row), cells);
    }
    rest(&mut table, &order, shown, report);
    table
}

fn number(row: &Row) -> Option<u64> {
    row.port.map(u64::from).or(row.address).or(row.msr.map(u64::from))
}

/// The name, unless it only repeats the number.
fn shown_name(row: &Row, numbers: bool) -> String {
    let repeated = numbers && number(row).is_some_and(|n| row.name == format!("{n:#x}"));
    if repeated {
        String::new()
    } else {
        row.name.clone()
    }
}

/// Rows that take far longer than their peers stand out.
fn tone(row: &Row) -> Tone {
    let stands_out = row.ratio_to_peers.is_some_and(|ratio| ratio >= OUTLIER);
    if stands_out && row.timed >= MIN_COUNT {
        Tone::Strong
    } else {
        Tone::Normal
    }
}

fn count(count: Option<u64>) -> Cell {
    count.map_or(Cell::Empty, |n| Cell::Inline(Quantity::exact(n as f64, Unit::Count)))
}

fn time(seconds: Option<f64>) -> Cell {
    seconds.map_or(Cell::Empty, |s| Cell::Inline(Quantity::exact(s, Unit::Seconds)))
}

/// One line for what is not shown.
fn rest(table: &mut Table, order: &[&Row], shown: usize, report: &Report) {
    let Some(rest) = order.get(shown..).filter(|rest| !rest.is_empty()) else { return };
    let count: u64 = rest.iter().map(|r| r.count).sum();
    let total: f64 = rest.iter().filter_map(|r| r.total_s).sum();
    let named = table.columns.iter().position(|c| c.title == "name").unwrap_or(0);
    let cells = table.columns.iter().enumerate().map(|(at, column)| match column.title.as_str() {
        _ if at == named => Cell::Text(format!("{} more", rest.len())),
        "count" => Cell::Inline(Quantity::exact(count as f64, Unit::Count)),
        "total" => time(report.tick_s.map(|_| total)),
        _ => Cell::Empty,
    });
    let cells = cells.collect();
    table.toned_row(Tone::Muted, cells);
}

/// What threads did with their time, as shares of the trace.
pub(super) fn threads(report: &Report, shown: usize) -> Table {
    // Without VMEXITs, nobody knows what of KVM_RUN the guest had.
    let kvm = match report.threads.iter().any(|thread| thread.guest_s.is_some()) {
        true => "KVM",
        false => "KVM+guest",
    };
    let mut table = Table::new(vec![
        Column { shrinks_to: Some(16), ..Column::text("thread", 0) },
        Column::number("on a CPU", 0),
        Column::number("guest", 1),
        Column::number(kvm, 1),
        Column::number("kernel", 2),
        Column::number("user", 2),
        Column::number("runnable", 1),
        Column::number("blocked", 1),
        Column::number("not recorded", 3),
    ]);
    let whole = report.duration_s.filter(|s| *s > 0.0);
    let share = |seconds: Option<f64>| match (seconds, whole) {
        (Some(seconds), Some(whole)) => Cell::Text(percent(seconds / whole)),
        _ => Cell::Empty,
    };
    for thread in report.threads.iter().take(shown) {
        let vcpu = if thread.vcpu { " (vCPU)" } else { "" };
        let name = format!("{} {}{vcpu}", thread.thread, thread.name);
        let cells = vec![
            Cell::Name(name),
            share(thread.running_s),
            share(thread.guest_s),
            share(thread.kvm_s),
            share(thread.kernel_s),
            share(thread.user_s),
            share(thread.runnable_s),
            share(thread.blocked_s),
            share(thread.unknown_s),
        ];
        table.toned_row(if thread.vcpu { Tone::Strong } else { Tone::Normal }, cells);
    }
    let left = report.threads.len().saturating_sub(shown);
    if left > 0 {
        table.toned_row(Tone::Muted, vec![Cell::Text(format!("{left} more"))]);
    }
    drop_empty(table)
}

/// Leaves out columns without a single value.
fn drop_empty(table: Table) -> Table {
    let filled = |c: usize| table.rows.iter().any(|row| *table.cell(row, c) != Cell::Empty);
    let kept: Vec<usize> = (0..table.columns.len()).filter(|c| filled(*c)).collect();
    let mut slim = Table::new(kept.iter().map(|c| table.columns[*c].clone()).collect());
    for row in &table.rows {
        let cells = kept.iter().map(|c| table.cell(row, *c).clone()).collect();
        slim.toned_row(row.tone, cells);
    }
    slim
}

/// Events by name, the most frequent first.
pub(super) fn events(report: &Report, shown: usize) -> Table {
    let mut table = Table::new(vec![Column::name("event"), Column::number("count", 0)]);
    let mut counts: Vec<(&String, &u64)> = report.counts.iter().collect();
    counts.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (name, count) in counts.iter().take(shown) {
        let count = Cell::Inline(Quantity::exact(**count as f64, Unit::Count));
        table.row(vec![Cell::Name((*name).clone()), count]);
    }
    if counts.len() > shown {
        let left = format!("{} more", counts.len() - shown);
        table.toned_row(Tone::Muted, vec![Cell::Text(left)]);
    }
    table
}

/// `d1v0`, or `d1` for a domain.
pub(super) fn xen_name(runstates: &Runstates) -> String {
    match runstates.vcpu {
        Some(vcpu) => format!("d{}v{vcpu}", runstates.domain),
        None => format!("d{}", runstates.domain),
    }
}
