//! `vmeter trace stat`: what a trace spends its events and its time on.

mod json;
mod tables;
mod versus;

use vmeter_model::result::Envelope;
use vmeter_render::document::{closing_notices, Block, Detail, Document};
use vmeter_render::quantity::{compact_seconds, grouped};
use vmeter_render::{Field, Records, Report};
use vmeter_trace::stat::report::Runstates;
use vmeter_trace::stat::versus::Versus;
use vmeter_trace::stat::{Report as TraceReport, Row};
use vmeter_trace::walk::xen::IDLE_DOMAIN;

/// A trace with its name.
#[derive(Debug, Clone, Copy)]
pub struct NamedTrace<'a> {
    /// The file as the user named it.
    pub file: &'a str,
    /// Its statistics.
    pub report: &'a TraceReport,
}

/// Statistics of traces, with how much of them to show.
#[derive(Debug)]
pub struct TraceStatReport<'a> {
    /// What heads the exports.
    pub envelope: &'a Envelope,
    /// The traces.
    pub traces: Vec<NamedTrace<'a>>,
    /// Their comparison, if two were compared.
    pub versus: Option<&'a Versus>,
    /// Warnings in words.
    pub warnings: &'a [String],
    /// Rows of each table at a glance; 0 for all.
    pub top: usize,
}

/// What the columns of the threads are.
const THREADS: &str =
    "share of the trace's duration; the time before a thread's first event is in no column; \
        \"not recorded\": no event shows what the thread did; vmeter assumes that a thread stays \
        in its last state until the trace ends";

const RUNSTATES: &str =
    "each time is the mean of all visits to the state; share: of this vCPU's recorded time";
/// Xen's `vcpu_runstate_change`: a vCPU that can't run and is not blocked by itself.
const OFFLINE: &str = "; offline: paused, or waiting for the device model";

/// Begins the heading of each table; how to read its rows.
const SECTIONS: [(&str, &str, &str); 13] = [
    ("ports", "Ports", "duration of the VMEXIT around each access"),
    ("mmio", "MMIO", "duration of the VMEXIT around each access"),
    ("msrs", "MSRs", "duration of the VMEXIT around each access"),
    ("exits", "VMEXITs", "from VMEXIT to the next VM entry"),
    (
        "userspace_exits",
        "Exits to user space",
        "until the VMM calls KVM_RUN again; restart: KVM_RUN failed with EINTR",
    ),
    ("hypercalls", "Hypercalls", "from VMEXIT to the next VM entry"),
    ("syscalls", "System calls", "from entry to exit, waiting included"),
    ("ioctls", "ioctl requests", "from entry to exit, waiting included"),
    ("irqs", "Interrupts", "time in the handler"),
    ("vectors", "Local interrupts", "time in the handler"),
    ("ipis", "IPIs received", "time in the handler"),
    ("ipi_sends", "IPIs sent", "what for"),
    ("works", "Work functions", "from start to end of each work item"),
];

impl TraceStatReport<'_> {
    fn rows_shown(&self, detail: Detail) -> usize {
        match (detail, self.top) {
            (Detail::Full, _) | (_, 0) => usize::MAX,
            (_, top) => top,
        }
    }

    fn trace(&self, document: &mut Document, trace: &NamedTrace<'_>, detail: Detail) {
        let report = trace.report;
        if self.traces.len() > 1 {
            document.heading(trace.file, answer(report));
        }
        let shown = self.rows_shown(detail);
        if report.duration_s.is_some() && !report.threads.is_empty() {
            document.heading("Time by thread", lossy(report, THREADS));
            document.push(Block::Table(tables::threads(report, shown)));
        }
        if let Some(columns) = columns(report) {
            document.push(Block::Paragraph(columns));
        }
        let guests = |r: &&Runstates| r.vcpu.is_some() && r.domain != IDLE_DOMAIN;
        for runstates in report.runstates.iter().filter(guests) {
            let title = format!("Runstates of {}", tables::xen_name(runstates));
            let offline = runstates.rows.iter().any(|row| row.name == "offline");
            let note = format!("{RUNSTATES}{}", if offline { OFFLINE } else { "" });
            document.heading(title, lossy(report, &note));
            document.push(Block::Table(tables::rows(&runstates.rows, report, shown)));
        }
        for ((_, rows), (_, title, note)) in report.tables().into_iter().zip(SECTIONS) {
            if !rows.is_empty() {
                document.heading(title, lossy(report, note));
                document.push(Block::Table(tables::rows(rows, report, shown)));
            }
        }
        let tables_empty = report.tables().iter().all(|(_, rows)| rows.is_empty());
        if tables_empty && report.runstates.is_empty() {
            document.heading("Events", lossy(report, "by name"));
            document.push(Block::Table(tables::events(report, shown)));
        }
    }
}

/// What the columns of the tables are, as far as this trace has them.
fn columns(report: &TraceReport) -> Option<String> {
    let any = |has: fn(&Row) -> bool| report.tables().iter().any(|(_, rows)| rows.iter().any(has));
    let mut notes = Vec::new();
    if any(|row| row.cut > 0) {
        notes.push(
            "cut = durations without a beginning or an end, because events were lost (vmeter \
            counts these durations, but does not time them)"
                .to_owned(),
        );
    }
    if any(|row| row.timed < row.count && row.cut == 0) {
        notes.push(
            "the column \"count\" includes durations whose beginning or end the trace lacks; the \
            columns of times leave these durations out"
                .to_owned(),
        );
    }
    if any(|row| row.share.is_some()) {
        let time = report.vcpu_time_s.map(|s| format!(" ({})", compact_seconds(s)));
        notes.push(match report.shares_of_vcpus {
            true => format!(
                "share = part of the recorded time of the guest's vCPUs{}; in the rows of system \
                 calls, interrupts and kernel work items, share = part of the trace's duration",
                time.unwrap_or_default()
            ),
            false => "share = part of the trace's duration".to_owned(),
        });
    }
    if any(|row| row.ratio_to_peers.is_some()) {
        notes.push(
            "vs peers = this row's mean ÷ the median of its peers' means (peers: the table's other \
            rows; for a read, only the other reads; for a write, only the other writes; at least \
            3 peers)"
                .to_owned(),
        );
    }
    (!notes.is_empty()).then(|| format!("In the tables below: {}.", notes.join("; ")))
}

/// A note that says so where counts are too low and times are missing.
fn lossy(report: &TraceReport, note: &str) -> String {
    let (lost, gaps) = (report.lost_events, report.losses.uncounted_gaps);
    match (lost, gaps) {
        (0, 0) => note.to_owned(),
        (0, gaps) => format!(
            "{note}; counts are lower bounds, because events were lost in {gaps} \
            gaps"
        ),
        (lost, _) => {
            format!(
                "{note}; counts are lower bounds, because {} events were lost",
                grouped(&lost.to_string())
            )
        }
    }
}

/// One sentence about the whole trace.
fn answer(report: &TraceReport) -> String {
    let events = grouped(&report.events.to_string());
    let time = report.duration_s.map(|s| format!(" in {}", compact_seconds(s)));
    let lost = match (report.lost_events, report.losses.uncounted_gaps) {
        (0, 0) => "none known to be lost".to_owned(),
        (0, gaps) => format!("an unknown number lost in {gaps} gaps"),
        (lost, _) => format!("{} lost", grouped(&lost.to_string())),
    };
    let clock = match report.clock.as_str() {
        "seconds" => "timestamps in seconds".to_owned(),
        clock => format!("clock {clock}"),
    };
    format!("{events} events{} ({}, {clock}), {lost}.", time.unwrap_or_default(), report.format)
}

impl Report for TraceStatReport<'_> {
    fn envelope(&self) -> &Envelope {
        self.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        json::body(self)
    }

    fn document(&self, detail: Detail) -> Document {
        let files: Vec<&str> = self.traces.iter().map(|t| t.file).collect();
        let mut document = Document {
            title: format!("vmeter trace stat {}", files.join(" ")),
            ..Document::default()
        };
        match (self.versus, self.traces.as_slice()) {
            (Some(versus), _) => versus::document(&mut document, versus, self.rows_shown(detail)),
            (None, traces) => {
                if let [trace] = traces {
                    document.answer = answer(trace.report);
                }
                traces.iter().for_each(|trace| self.trace(&mut document, trace, detail));
            }
        }
        document.push(Block::Notices(closing_notices(self.warnings, &[], "")));
        document
    }

    fn records(&self) -> Records {
        let rows = self.traces.iter().flat_map(|trace| {
            let tables = trace.report.tables().into_iter();
            tables
                .flat_map(move |(table, rows)| rows.iter().map(move |row| (trace.file, table, row)))
        });
        Records::of(
            rows,
            [
                ("file", |(file, _, _)| Field::text(*file)),
                ("table", |(_, table, _)| Field::text(*table)),
                ("name", |(_, _, row)| Field::text(&row.name)),
                ("number", |(_, _, row)| {
                    Field::number(
                        row.port.map(u64::from).or(row.address).or(row.msr.map(u64::from)),
                    )
                }),
                ("direction", |(_, _, row)| row.direction.map_or(Field::Empty, Field::text)),
                ("device", |(_, _, row)| row.device.as_deref().map_or(Field::Empty, Field::text)),
                ("count", |(_, _, row)| Field::number(Some(row.count))),
                ("timed", |(_, _, row)| Field::number(Some(row.timed))),
                ("cut", |(_, _, row)| Field::number(Some(row.cut))),
                ("total_s", |(_, _, row)| Field::number(row.total_s)),
                ("mean_s", |(_, _, row)| Field::number(row.mean_s)),
                ("mean_cycles", |(_, _, row)| Field::number(row.mean_cycles)),
                ("median_s", |(_, _, row)| Field::number(row.median_s)),
                ("p99_s", |(_, _, row)| Field::number(row.p99_s)),
                ("max_s", |(_, _, row)| Field::number(row.max_s)),
                ("share", |(_, _, row)| Field::number(row.share)),
                ("ratio_to_peers", |(_, _, row)| Field::number(row.ratio_to_peers)),
            ],
        )
    }
}
