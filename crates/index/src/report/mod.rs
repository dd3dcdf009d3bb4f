//! `vmeter runs`: which sessions there are, and every run of them for other tools.

mod json;

use crate::result::{RunsResult, SavedRun, SavedSession};
use serde::ser::{SerializeSeq, Serializer};
use serde::Serialize;
use std::io;
use vmeter_base::Envelope;
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{grouped, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, RecordColumn, RecordStream, Records, Report};

/// Sessions at a glance, unless more were asked for.
const GLANCE: usize = 20;

/// A [`RunsResult`] to be written.
#[derive(Debug)]
pub struct RunsReport<'a> {
    /// The result.
    pub result: &'a RunsResult,
    /// Sessions to show at a glance.
    pub glance: usize,
}

impl<'a> RunsReport<'a> {
    /// The result, its latest sessions at a glance.
    pub fn new(result: &'a RunsResult) -> Self {
        RunsReport { result, glance: GLANCE }
    }

    fn answer(&self, shown: usize) -> String {
        let result = self.result;
        if result.found == 0 {
            return format!("No saved session is {}.", result.action);
        }
        let plural = |n: usize, word: &str| match n {
            1 => format!("1 {word}"),
            n => format!("{} {word}s", grouped(&n.to_string())),
        };
        let sessions = plural(result.found, "session");
        let runs = plural(result.runs, "run");
        let size = Quantity::exact(result.bytes as f64, Unit::Bytes).inline();
        let which = if shown < result.found {
            format!("; the latest {shown} are shown")
        } else {
            String::new()
        };
        format!("{sessions} with {runs}, {size}: {}{which}.", result.action)
    }

    fn table(&self, sessions: &[SavedSession]) -> Table {
        let mut table = Table::new(vec![
            Column::text("started (UTC)", 1),
            Column::text("session", 0),
            Column { shrinks_to: Some(16), ..Column::text("command line", 2) },
            Column { shrinks_to: Some(10), ..Column::text("machine", 1) },
            Column::number("runs", 0),
            Column::number("mean", 1),
            Column::number("size", 3),
        ]);
        for session in sessions {
            table.row(vec![
                Cell::Text(started(&session.started_at)),
                Cell::Name(session.id.clone()),
                Cell::Text(session.argv.get(1..).unwrap_or_default().join(" ")),
                Cell::Text(machine(session)),
                Cell::Text(runs(session)),
                session
                    .mean_s
                    .map_or(Cell::Empty, |s| Cell::Inline(Quantity::exact(s, Unit::Seconds))),
                Cell::Inline(Quantity::exact(session.bytes as f64, Unit::Bytes)),
            ]);
        }
        table
    }
}

/// `2026-05-01 12:00`.
fn started(at: &str) -> String {
    at.get(..16).unwrap_or(at).replace('T', " ")
}

fn machine(session: &SavedSession) -> String {
    match session.machines {
        0 | 1 => session.machine.clone(),
        n => format!("{n} machines"),
    }
}

/// `5`, or `3 of 6 planned` with warm-ups, or with those that failed.
fn runs(session: &SavedSession) -> String {
    let done = session.runs + session.warmups + session.failed;
    let failed = match session.failed {
        0 => String::new(),
        n => format!(", {n} failed"),
    };
    if session.planned > done && session.machines == 1 {
        format!("{} ({done} of {} made{failed})", session.runs, session.planned)
    } else {
        format!("{}{failed}", session.runs)
    }
}

impl Report for RunsReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let shown = match detail {
            Detail::Glance | Detail::Page => self.glance.min(result.sessions.len()),
            Detail::Full => result.sessions.len(),
        };
        let sessions = result.sessions.get(result.sessions.len() - shown..).unwrap_or_default();
        let title = format!("vmeter {}", result.envelope.command);
        let mut document = Document { title, answer: self.answer(shown), blocks: Vec::new() };
        if !sessions.is_empty() {
            document.push(Block::Table(self.table(sessions)));
        }
        let notices = closing_notices(&result.warnings, &result.hints, "");
        if !notices.is_empty() {
            document.push(Block::Notices(notices));
        }
        document
    }

    fn records(&self) -> Records {
        Records::of(
            &self.result.sessions,
            [
                ("session", |s| Field::text(&s.id)),
                ("path", |s| Field::text(s.path.to_string_lossy())),
                ("command", |s| Field::text(&s.command)),
                ("started_at", |s| Field::text(&s.started_at)),
                ("cpu_model", |s| Field::text(&s.cpu_model)),
                ("machines", |s| Field::number(Some(s.machines))),
                ("machine", |s| Field::text(&s.machine)),
                ("machine_id", |s| s.machine_id.as_ref().map_or(Field::Empty, Field::text)),
                ("runs", |s| Field::number(Some(s.runs))),
                ("warmups", |s| Field::number(Some(s.warmups))),
                ("failed", |s| Field::number(Some(s.failed))),
                ("planned", |s| Field::number(Some(s.planned))),
                ("mean_s", |s| Field::number(s.mean_s)),
                ("bytes", |s| Field::number(Some(s.bytes))),
                ("problem", |s| s.problem.as_ref().map_or(Field::Empty, Field::text)),
            ],
        )
    }
}

/// Where runs come from, one by one: there may be millions.
pub trait RunSource {
    /// Gives every run to `each`.
    ///
    /// # Errors
    /// The source's own, and `each`'s.
    fn for_each(&self, each: &mut dyn FnMut(SavedRun) -> io::Result<()>) -> io::Result<()>;
}

/// Every run, for other tools (`vmeter runs export`).
pub struct RunsExport<'a> {
    /// Head.
    pub envelope: &'a Envelope,
    /// The runs.
    pub source: &'a dyn RunSource,
}

impl Report for RunsExport<'_> {
    fn envelope(&self) -> &Envelope {
        self.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(Streamed { runs: Rows(self.source) })
    }

    fn document(&self, _detail: Detail) -> Document {
        let note = "one row for each run; on a terminal, `vmeter runs list` shows one row for \
            each session";
        let facts = vec![Fact::new("runs", "for other tools: JSON or CSV", note)];
        Document {
            title: "vmeter runs export".into(),
            answer: String::new(),
            blocks: vec![Block::Facts(facts)],
        }
    }

    fn records(&self) -> Records {
        Records::of([], COLUMNS)
    }

    fn stream(&self) -> Option<&dyn RecordStream> {
        Some(self)
    }
}

impl RecordStream for RunsExport<'_> {
    fn for_each(&self, each: &mut dyn FnMut(Vec<Field>) -> io::Result<()>) -> io::Result<()> {
        self.source
            .for_each(&mut |run| each(COLUMNS.iter().map(|(_, field)| field(&run)).collect()))
    }
}

/// What is said of a run.
const COLUMNS: [RecordColumn<SavedRun>; 18] = [
    ("session", |run| Field::text(&run.session)),
    ("command", |run| Field::text(&run.command)),
    ("session_started_at", |run| Field::text(&run.session_started_at)),
    ("cpu_model", |run| Field::text(&run.cpu_model)),
    ("run", |run| Field::number(Some(run.run))),
    ("label", |run| Field::text(&run.label)),
    ("machine_id", |run| Field::text(&run.machine_id)),
    ("machine", |run| Field::text(&run.machine)),
    ("warmup", |run| Field::text(run.warmup.to_string())),
    ("outcome", |run| Field::text(&run.outcome)),
    ("started_s", |run| Field::number(run.started_s)),
    ("total_s", |run| Field::number(Some(run.total_s))),
    ("user_s", |run| Field::number(Some(run.user_s))),
    ("system_s", |run| Field::number(Some(run.system_s))),
    ("max_rss_bytes", |run| Field::number(Some(run.max_rss_bytes))),
    ("steal_s", |run| Field::number(Some(run.steal_s))),
    ("bytes", |run| Field::number(Some(run.bytes))),
    ("path", |run| Field::text(run.path.to_string_lossy())),
];

#[derive(Serialize)]
struct Streamed<'a> {
    runs: Rows<'a>,
}

struct Rows<'a>(&'a dyn RunSource);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        // The source speaks of files, the serializer of what it writes.
        let mut refused = None;
        let ended = self.0.for_each(&mut |run| {
            list.serialize_element(&json::Run::of(&run)).map_err(|error| {
                refused = Some(error);
                io::Error::other("the export ended early")
            })
        });
        match (refused, ended) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(serde::ser::Error::custom(error)),
            (None, Ok(())) => list.end(),
        }
    }
}
