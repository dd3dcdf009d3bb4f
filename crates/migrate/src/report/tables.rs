//! The tables of `vmeter migrate`.

use super::{value, word, MigrateReport, GLANCE, ROUNDS};
use crate::MigratePoint;
use vmeter_render::document::Detail;
use vmeter_render::quantity::{compact_seconds, grouped};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;

impl MigrateReport<'_> {
    pub(super) fn main_table(&self) -> Table {
        let names = self.varied();
        let mut columns: Vec<Column> = names.iter().map(|name| Column::text(name, 0)).collect();
        columns.extend([
            Column::text("outcome", 0),
            Column::number("total", 0),
            Column::number("downtime", 0),
            Column::number("guest gap", 0).meaning("between two heartbeats, across the switch"),
            Column::number("rounds", 1),
            Column::number("dirtied", 2),
            Column::number("sent", 2),
            Column::number("bandwidth", 1).meaning("sent per second until the guest stopped"),
            Column::text("memory", 1),
        ]);
        let mut table = Table::new(columns);
        for point in &self.result.points {
            let mut cells: Vec<Cell> = names.iter().map(|n| Cell::Text(value(point, n))).collect();
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            let (word, tone) = outcome(point);
            cells.extend([
                Cell::Toned(word, tone),
                seconds(Some(point.total_s)),
                seconds(point.downtime_s),
                seconds(point.guest_gap_s),
                Cell::Text(point.rounds.to_string()),
                Cell::Text(rate(point.dirty_pages_per_s * 4096.0)),
                Cell::Text(megabytes(point.transferred_bytes as f64)),
                Cell::Text(rate(point.bandwidth_bytes_per_s)),
                match point.verified {
                    Some(true) => Cell::Toned("equal".into(), Tone::Good),
                    Some(false) => Cell::Toned("DIFFERS".into(), Tone::Bad),
                    None => Cell::Empty,
                },
            ]);
            table.row(cells);
        }
        table
    }

    pub(super) fn predictions(&self) -> Table {
        let names = self.varied();
        let mut columns: Vec<Column> = names.iter().map(|name| Column::text(name, 0)).collect();
        columns.extend([
            Column::number("writes", 0).meaning("the guest's dirty rate"),
            Column::number("bandwidth", 0),
            Column::text("converges", 0),
            Column::number("rounds", 2),
            Column::number("total", 1),
            Column::number("downtime", 1).meaning(
                "at this bandwidth; the real downtime is shorter, because QEMU sends the last \
                round without its bandwidth limit",
            ),
            Column::text("actual", 0).meaning("whether it converged"),
        ]);
        let mut table = Table::new(columns);
        for point in &self.result.points {
            let p = &point.prediction;
            let mut cells: Vec<Cell> = names.iter().map(|n| Cell::Text(value(point, n))).collect();
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            cells.extend([
                Cell::Text(rate(p.dirty_bytes_per_s)),
                Cell::Text(rate(p.bandwidth_bytes_per_s)),
                Cell::Text(if p.converges { "yes" } else { "no" }.into()),
                p.rounds.map_or(Cell::Empty, |n| Cell::Text(n.to_string())),
                seconds(p.total_s),
                seconds(p.downtime_s),
                match p.right {
                    Some(right) => {
                        let tone = if right { Tone::Good } else { Tone::Bad };
                        // It did as predicted, or the other.
                        let did = if p.converges == right { "yes" } else { "no" };
                        Cell::Toned(did.into(), tone)
                    }
                    None => Cell::Text("not seen".into()),
                },
            ]);
            table.row(cells);
        }
        table
    }

    pub(super) fn rounds(&self, detail: Detail) -> Table {
        let (points, rounds) = match detail {
            Detail::Full => (usize::MAX, usize::MAX),
            Detail::Glance | Detail::Page => (GLANCE, ROUNDS),
        };
        let mut table = Table::new(vec![
            Column::name("setting"),
            Column::number("round", 0),
            Column::number("begins", 1),
            Column::number("takes", 0),
            Column::number("pages to send", 0).meaning("QEMU's count when the round begins"),
            Column::number("sent", 1)
                .meaning("QEMU's count, updated late: exact only in the sum of all rounds"),
            Column::number("dirtied meanwhile", 0).meaning("the guest's own count"),
            Column::number("throttle", 2),
        ]);
        for (n, point) in self.result.points.iter().enumerate().take(points) {
            let Some(run) = self.shown(n) else { continue };
            let mut name = self.label(point);
            for round in run.rounds.iter().take(rounds) {
                table.row(vec![
                    Cell::Name(std::mem::take(&mut name)),
                    Cell::Text(round.round.to_string()),
                    Cell::Text(compact_seconds(round.start_s.max(0.0))),
                    Cell::Text(compact_seconds(round.length_s)),
                    Cell::Text(grouped(&round.pages.to_string())),
                    Cell::Text(megabytes(round.transferred_bytes as f64)),
                    Cell::Text(grouped(&round.written_pages.to_string())),
                    match round.throttle_percent {
                        0 => Cell::Empty,
                        percent => Cell::Text(format!("{percent}%")),
                    },
                ]);
            }
            if run.rounds.len() > rounds {
                let more = format!("and {} more", run.rounds.len() - rounds);
                table.row(vec![Cell::Empty, Cell::Text(more)]);
            }
        }
        table
    }

    pub(super) fn gaps(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("setting"),
            Column::number("guest gap", 0).meaning("between two heartbeats, across the switch"),
            Column::number("stopped", 0).meaning("STOP to RESUME"),
            Column::number("QEMU reports", 0),
            Column::number("guest clock", 0).meaning("guest gap, measured with the guest's TSC"),
            Column::number("gap before", 1).meaning("longest gap until STOP"),
            Column::number("gap after", 1),
            Column::number("lost after", 2),
        ]);
        for (n, point) in self.result.points.iter().enumerate() {
            let Some(run) = self.shown(n).filter(|run| run.guest_gap_s.is_some()) else { continue };
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            table.row(vec![
                Cell::Name(self.label(point)),
                seconds(run.guest_gap_s),
                seconds(run.stopped_s),
                seconds(run.downtime_s),
                seconds(run.guest_clock_gap_s),
                seconds(Some(run.longest_gap_before_s)),
                seconds(Some(run.longest_gap_after_s)),
                seconds(Some(run.lost_after_s)),
            ]);
        }
        table
    }
}

fn rate(bytes_per_s: f64) -> String {
    format!("{:.0} MB/s", bytes_per_s / 1e6)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

fn outcome(point: &MigratePoint) -> (String, Tone) {
    match point.outcomes.as_slice() {
        [] => (String::new(), Tone::Muted),
        [(only, _)] => {
            let (word, tone) = word(*only);
            (word.to_owned(), tone)
        }
        several => {
            let words = several.iter().map(|(outcome, n)| format!("{n} {}", word(*outcome).0));
            (words.collect::<Vec<_>>().join(", "), Tone::Bad)
        }
    }
}
