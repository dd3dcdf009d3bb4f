//! `vmeter runs trend`, for every output.

use super::{MachineTrend, TrendChange, TrendResult};
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_render::document::{Block, Detail, Document, Notice, NoticeKind};
use vmeter_render::quantity::{p_value, plural, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, Records, Report};

/// A [`TrendResult`] to be written.
#[derive(Debug)]
pub struct TrendReport<'a> {
    /// The result.
    pub result: &'a TrendResult,
}

impl TrendReport<'_> {
    fn answer(&self) -> String {
        let machines = &self.result.machines;
        let latest = machines
            .iter()
            .filter_map(|machine| Some((machine, machine.changes.last()?)))
            .map(|(machine, change)| sentence(machine, change));
        let latest: Vec<String> = latest.collect();
        if !latest.is_empty() {
            return latest.join(" ");
        }
        if machines.is_empty() {
            return "No machine has four saved sessions or more on one host: nothing can be said of \
                    a trend."
                .into();
        }
        let sessions = machines.iter().map(|m| m.sessions.len()).sum::<usize>() as u64;
        let found = match machines.as_slice() {
            [one] => one.detectable_pct.map_or_else(
                || "; of so few none that a quarter of them have could have been told from odd sessions".into(),
                |pct| format!("; {pct:.1} % that a quarter of them have would have been found in four of five cases"),
            ),
            _ => String::new(),
        };
        format!(
            "No change of level over {} of {}{found}.",
            plural(sessions, "session"),
            plural(machines.len() as u64, "machine")
        )
    }

    fn table(machine: &MachineTrend) -> Table {
        let mut table = Table::new(vec![
            Column::name("since"),
            Column::number("change", 0),
            Column::number("p", 1),
            Column::text("changed with it", 2),
        ]);
        for change in &machine.changes {
            table.row(vec![
                Cell::Name(change.since.clone()),
                Cell::Text(format!("{:+.1} %", 100.0 * (change.ratio - 1.0))),
                Cell::Text(p_value(change.p_value)),
                Cell::Text(change.changed.join(", ")),
            ]);
        }
        table
    }
}

fn named(machine: &MachineTrend) -> String {
    let program = machine.argv.first().map_or("?", String::as_str);
    let program = program.rsplit('/').next().unwrap_or(program);
    format!("{program} on {}, watched {}", machine.hostname, machine.watch)
}

fn sentence(machine: &MachineTrend, change: &TrendChange) -> String {
    let percent = 100.0 * (change.ratio - 1.0);
    let word = if percent > 0.0 { "slower" } else { "faster" };
    let with = match change.changed.as_slice() {
        [] => String::new(),
        names => format!("; with it changed {}", names.join(", ")),
    };
    format!("{} is {:.1} % {word} since {}{with}.", named(machine), percent.abs(), change.since)
}

impl Report for TrendReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(self.result)
    }

    fn document(&self, _: Detail) -> Document {
        let title = "vmeter runs trend".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        let mut notices = Vec::new();
        for machine in &self.result.machines {
            let centres: Vec<f64> = machine.sessions.iter().map(|s| s.centre_s).collect();
            let last = centres.last().copied().unwrap_or_default();
            let last = Quantity::exact(last, Unit::Seconds).inline();
            let sessions = plural(centres.len() as u64, "session");
            let found = machine.detectable_pct.map_or_else(
                || "; too few to tell a change that a quarter of them have".into(),
                |pct| format!("; a change of {pct:.1} % would be found"),
            );
            document.heading(named(machine), format!("{sessions}, the last {last}{found}"));
            let mut over_time = Table::new(vec![Column::text("sessions over time", 0)]);
            over_time.row(vec![Cell::Spark(centres)]);
            document.push(Block::Table(over_time));
            if machine.changes.is_empty() {
                continue;
            }
            document.push(Block::Table(Self::table(machine)));
            if let Some(change) = machine.changes.last() {
                let [a, b] = change.paths.each_ref().map(|path| shell::path(path));
                notices.push(Notice::new(NoticeKind::Note, format!("vmeter diff {a} {b}")));
            }
        }
        if self.result.too_few > 0 {
            let few = plural(self.result.too_few as u64, "machine");
            let text = format!("{few} with fewer than four sessions: left out");
            notices.push(Notice::new(NoticeKind::Note, text));
        }
        if self.result.ends_not_known > 0 {
            let some = plural(self.result.ends_not_known as u64, "session");
            let text = format!("{some} of whose guests nothing says how they ended: left out");
            notices.push(Notice::new(NoticeKind::Note, text));
        }
        if let Some(first) = self.result.unread.first() {
            let some = plural(self.result.unread.len() as u64, "session");
            let text = format!("{some} left out as unreadable: {first}");
            notices.push(Notice::new(NoticeKind::Warning, text));
        }
        document.push(Block::Notices(notices));
        document
    }

    fn records(&self) -> Records {
        let header = vec!["machine", "started_at", "centre_s", "runs", "new_level"];
        let mut records = Records { header, rows: Vec::new() };
        for machine in &self.result.machines {
            for session in &machine.sessions {
                let new = machine.changes.iter().any(|c| c.since == session.started_at);
                records.rows.push(vec![
                    Field::text(named(machine)),
                    Field::text(&session.started_at),
                    Field::number(Some(session.centre_s)),
                    Field::number(Some(session.runs)),
                    Field::number(Some(new)),
                ]);
            }
        }
        records
    }
}
