//! `vmeter runs trend`, for every output.

use super::{MachineTrend, TrendChange, TrendResult};
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::TrendVerdict;
use vmeter_render::document::{Block, Detail, Document, Notice, NoticeKind};
use vmeter_render::quantity::{plural, Quantity, Unit};
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
        let latest = machines.iter().filter(|machine| !machine.changes.is_empty()).map(sentences);
        let latest: Vec<String> = latest.collect();
        if !latest.is_empty() {
            return latest.join(" ");
        }
        if machines.is_empty() {
            return "A trend needs at least four saved sessions of a machine on one host; no \
                machine has so many."
                .into();
        }
        let sessions = machines.iter().map(|m| m.sessions.len()).sum::<usize>() as u64;
        let found = match machines.as_slice() {
            [one] => one.detectable_pct.map_or_else(
                || {
                    ". These sessions are too few: vmeter would not find a change of level that \
                        affects the last quarter of them"
                        .into()
                },
                |pct| {
                    format!(
                        ". vmeter would have found, with 80 % power, a change of {pct:.1} % \
                            that affects the last quarter of these sessions"
                    )
                },
            ),
            _ => String::new(),
        };
        let sessions = plural(sessions, "session");
        let machines = plural(machines.len() as u64, "machine");
        format!("No change of level in {sessions} of {machines}{found}.")
    }

    fn table(machine: &MachineTrend) -> Table {
        let mut table = Table::new(vec![
            Column::name("since"),
            Column::number("change", 0),
            Column::text("verdict", 1),
            Column::text("changed with it", 2),
        ]);
        for change in &machine.changes {
            table.row(vec![
                Cell::Name(change.since.clone()),
                Cell::Text(format!("{:+.1} %", 100.0 * (change.ratio - 1.0))),
                Cell::Text(change.verdict.word().into()),
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

/// The latest change, and what led to it.
fn sentences(machine: &MachineTrend) -> String {
    let Some((last, earlier)) = machine.changes.split_last() else { return String::new() };
    let said = sentence(machine, last);
    if earlier.is_empty() {
        return said;
    }
    let one = |change: &TrendChange| {
        let doubt = if change.verdict == TrendVerdict::Undecided { " (undecided)" } else { "" };
        format!("{:+.1} % since {}{doubt}", 100.0 * (change.ratio - 1.0), change.since)
    };
    let earlier: Vec<String> = earlier.iter().map(one).collect();
    let all = machine.changes.iter().map(|change| change.ratio).product::<f64>();
    format!(
        "{said} Before that: {}. From the first level to the last: {:+.1} %.",
        earlier.join(", "),
        100.0 * (all - 1.0)
    )
}

fn sentence(machine: &MachineTrend, change: &TrendChange) -> String {
    let percent = 100.0 * (change.ratio - 1.0);
    let slower = percent > 0.0;
    let with = match change.changed.as_slice() {
        [] => String::new(),
        names => format!("; with it changed {}", names.join(", ")),
    };
    let (name, percent, since) = (named(machine), percent.abs(), &change.since);
    let (took, as_word) = if slower { ("longer", "slower") } else { ("less", "faster") };
    let took = format!("{name} took {percent:.1} % {took} from {since} on{with}.");
    if let Some([old, new]) = change.other_hours {
        let hours = |[first, last]: [u32; 2]| match first == last {
            true => format!("{first}:00"),
            false => format!("{first}:00 to {last}:59"),
        };
        return format!(
            "{took} Undecided: the new sessions began at another hour of the day ({} UTC) than the \
             earlier sessions ({} UTC). \
             Either the machine is {as_word}, or its host is {as_word} at that hour. To decide, \
             measure at the same hour, or use vmeter boot --baseline, which boots both machines \
             in turn.",
            hours(new),
            hours(old)
        );
    }
    if change.other_days {
        return format!(
            "{took} Undecided: most of the earlier sessions are from weekdays and most of the new \
                ones from weekends, or the reverse (UTC). Either the machine is {as_word}, or the \
                host was {as_word} when the new sessions ran. To decide, measure on the same days \
                of the week, or use vmeter boot --baseline, which alternates boots of the old and \
                the new machine."
        );
    }
    if change.verdict == TrendVerdict::Undecided {
        return format!(
            "{took} Undecided: either the machine is {as_word}, or its host was {as_word} for a \
                while. {} cannot decide between the two. Measure more sessions, or use vmeter \
                boot --baseline, which boots both machines in turn.",
            plural(machine.sessions.len() as u64, "session"),
        );
    }
    let word = change.verdict.word();
    format!("{name} is {percent:.1} % {word} since {since}{with}.")
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
                || "; too few to show a change that affects the last quarter of them".into(),
                |pct| {
                    format!(
                        "; with 80 % power, vmeter finds a change of {pct:.1} % that affects \
                            the last quarter of them"
                    )
                },
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
                notices.push(Notice::new(NoticeKind::Hint, format!("vmeter diff {a} {b}")));
            }
        }
        if self.result.too_few > 0 {
            let machines = plural(self.result.too_few as u64, "machine");
            let text = format!("vmeter left out {machines} with fewer than four sessions");
            notices.push(Notice::new(NoticeKind::Note, text));
        }
        if self.result.ends_not_known > 0 {
            let sessions = plural(self.result.ends_not_known as u64, "session");
            let text = format!(
                "vmeter left out {sessions}, because it does not know how their guests \
                ended"
            );
            notices.push(Notice::new(NoticeKind::Note, text));
        }
        if self.result.copies > 0 {
            let some = match self.result.copies {
                1 => {
                    "1 session is a copy of another session here: vmeter counts it only once".into()
                }
                n => format!(
                    "{n} sessions are copies of other sessions here: vmeter does not count the \
                        copies"
                ),
            };
            notices.push(Notice::new(NoticeKind::Note, some));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trend::{of_machine, SessionLevel};

    /// Twenty sessions of so many seconds, with another VMM from the 13th on.
    fn machine(seconds: impl Fn(u32) -> f64) -> MachineTrend {
        let session = |i: u32| SessionLevel {
            started_at: format!("2026-01-{:02}T12:00:00Z", i + 1),
            path: format!("/runs/{i}").into(),
            centre_s: seconds(i) + f64::from(i * 13 % 20) / 20.0,
            runs: 3,
            first_ns: 0,
            content: vec![[i64::from(i), 1]],
            provenance: [("vmm".to_owned(), (if i >= 12 { "2" } else { "1" }).to_owned())].into(),
        };
        let key = (vec!["/bin/qemu".to_owned()], "host".to_owned(), "none".to_owned(), Vec::new());
        of_machine(key, (0..20).map(session).collect())
    }

    /// The headline was of the last step alone, and the command was wrapped, so that it could not be pasted.
    #[test]
    fn two_steps_upward_are_both_told() {
        let stairs = machine(|i| [500.0, 575.0, 650.0][(i as usize / 7).min(2)]);
        let told = stairs.changes.iter().map(|c| (c.verdict, c.since.as_str()));
        let slower = TrendVerdict::Slower;
        let wanted = [(slower, "2026-01-08T12:00:00Z"), (slower, "2026-01-15T12:00:00Z")];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
        let said = sentences(&stairs);
        for part in
            ["% slower since 2026-01-15", "+15.0 % since 2026-01-08", "to the last: +29.9 %"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(stairs.detectable_pct < Some(1.0), "{:?}", stairs.detectable_pct);
        let result = TrendResult {
            envelope: vmeter_session::envelope::envelope_now("runs trend"),
            machines: vec![stairs],
            too_few: 0,
            ends_not_known: 0,
            copies: 0,
            unread: Vec::new(),
        };
        let document = TrendReport { result: &result }.document(Detail::Glance);
        let Some(Block::Notices(notices)) = document.blocks.last() else { panic!("notices") };
        let hint = Notice::new(NoticeKind::Hint, "vmeter diff /runs/13 /runs/14");
        assert_eq!(notices.as_slice(), [hint]);
    }

    /// Ten sessions in the morning, then ten at night on a host that is quicker at night: it was the machine's.
    #[test]
    fn sessions_of_another_hour_say_nothing_of_the_machine() {
        let by_hour = |hour: &dyn Fn(u32) -> u32| {
            let mut plain = machine(|i| if i >= 10 { 60.0 } else { 90.0 });
            for (i, session) in (0..).zip(&mut plain.sessions) {
                session.started_at = format!("2026-01-{:02}T{:02}:30:00Z", i + 1, hour(i));
            }
            let key = (plain.argv, plain.hostname, plain.watch, plain.measured_to);
            of_machine(key, plain.sessions)
        };
        let apart = by_hour(&|i| if i >= 10 { 22 } else { 10 });
        let change = apart.changes.first().expect("a change");
        assert_eq!(change.verdict, TrendVerdict::Undecided);
        assert_eq!(change.other_hours, Some([[10, 10], [22, 22]]));
        let said = sentence(&apart, change);
        assert!(
            said.contains("hour of the day (22:00 UTC) than the earlier sessions (10:00 UTC)"),
            "{said}"
        );
        for alike in
            [&(|_| 23u32) as &dyn Fn(u32) -> u32, &|i| (22 + i % 4) % 24, &|i| (i * 7) % 24]
        {
            let found = by_hour(alike);
            assert_eq!(found.changes[0].verdict, TrendVerdict::Faster, "{:?}", found.changes);
        }
    }

    /// A host that is quicker on weekends: twelve sessions on working days, then eight on two weekends.
    #[test]
    fn sessions_of_weekends_say_nothing_of_the_machine() {
        let on = |days: &dyn Fn(u32) -> u32| {
            let mut plain = machine(|i| if i >= 12 { 60.0 } else { 90.0 });
            for (i, session) in (0..).zip(&mut plain.sessions) {
                // A Thursday was the first of January 2026.
                session.started_at = format!("2026-01-{:02}T10:30:00Z", days(i) + 1);
            }
            let key = (plain.argv, plain.hostname, plain.watch, plain.measured_to);
            of_machine(key, plain.sessions)
        };
        let days = [0, 1, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 16, 17, 17, 23, 23, 24, 24];
        let apart = on(&|i| days[i as usize]);
        let change = apart.changes.first().expect("a change");
        assert!(change.other_days && change.verdict == TrendVerdict::Undecided, "{change:?}");
        assert!(sentence(&apart, change).contains("from weekdays"));
        let change = on(&|i| i).changes[0].clone();
        assert_eq!(change.verdict, TrendVerdict::Faster, "{change:?}");
    }

    #[test]
    fn a_copy_of_a_session_counts_once() {
        let twice = |times: u32| -> (usize, usize) {
            let mut all: Vec<SessionLevel> =
                (0..=times).flat_map(|_| machine(|_| 60.0).sessions).collect();
            let copies = crate::trend::without_copies(&mut all);
            (copies, all.len())
        };
        assert_eq!((twice(0), twice(1), twice(2)), ((0, 20), (20, 20), (40, 20)));
    }

    #[test]
    fn a_level_that_the_host_may_have_made_is_undecided() {
        let plain = machine(|i| if i >= 12 { 90.0 } else { 60.0 });
        let found = plain.changes.iter().map(|c| (c.verdict, c.since.as_str())).collect::<Vec<_>>();
        assert_eq!(found, [(TrendVerdict::Slower, "2026-01-13T12:00:00Z")]);
        let said = sentence(&plain, &plain.changes[0]);
        assert!(
            said.contains("% slower since 2026-01-13") && said.contains("changed vmm"),
            "{said}"
        );
        let host = machine(|i| 60.0 + 2.0 * (f64::from(i) * 0.314).sin());
        let change = host.changes.first().expect("a change by random order");
        assert!(change.p_value <= 0.01 && change.p_if_alike > 0.01, "{change:?}");
        let said = sentence(&host, change);
        assert!(
            said.contains("20 sessions cannot decide") && said.contains("or its host was"),
            "{said}"
        );
        let json = serde_json::to_value(&host).expect("JSON");
        assert_eq!(json["changes"][0]["verdict"], "undecided");
    }
}
