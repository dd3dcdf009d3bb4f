//! The fields after the envelope: a trace's own for one trace; for several, rows that name
//! their file.

use super::{NamedTrace, TraceStatReport};
use serde::Serialize;
use std::collections::BTreeMap;
use vmeter_trace::stat::versus::Versus;
use vmeter_trace::stat::{Report, Row};

#[derive(Serialize)]
struct One<'a> {
    file: &'a str,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    vs: Option<&'a Versus>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Several<'a> {
    events: u64,
    lost_events: u64,
    #[serde(flatten)]
    tables: BTreeMap<&'static str, Vec<RowOf<'a>>>,
    traces: Vec<Whole<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct RowOf<'a> {
    file: &'a str,
    #[serde(flatten)]
    row: &'a Row,
}

#[derive(Serialize)]
struct Whole<'a> {
    file: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

pub(super) fn body<'a>(report: &'a TraceStatReport<'_>) -> Box<dyn erased_serde::Serialize + 'a> {
    let warnings = report.warnings;
    if let [NamedTrace { file, report: one }] = report.traces[..] {
        return Box::new(One { file, report: one, vs: report.versus, warnings });
    }
    let traces = &report.traces;
    let mut tables: BTreeMap<&'static str, Vec<RowOf<'_>>> = BTreeMap::new();
    for NamedTrace { file, report } in traces {
        for (name, rows) in report.tables() {
            tables.entry(name).or_default().extend(rows.iter().map(|row| RowOf { file, row }));
        }
    }
    Box::new(Several {
        events: traces.iter().map(|t| t.report.events).sum(),
        lost_events: traces.iter().map(|t| t.report.lost_events).fold(0, u64::saturating_add),
        tables,
        traces: traces.iter().map(|t| Whole { file: t.file, report: t.report }).collect(),
        warnings,
    })
}
