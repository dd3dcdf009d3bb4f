//! The JSON body of a boot. Field names are fixed by schema `vmeter/1`.

use crate::boot::notices::outcome_word;
use serde::Serialize;
use std::collections::BTreeMap;
use vmeter_model::result::{Activity, AnalysedRun, BootResult, Overhead, Phase};
use vmeter_model::run::{Outcome, SessionMachine, SourceRecord, Usage, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::{Counts, Estimate, MachineSpec, Ns, Span};

/// The fields after the envelope.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    machine: Machine<'a>,
    total: Option<Estimate>,
    phases: &'a [Phase],
    counts: &'a BTreeMap<String, Estimate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<&'a Overhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_in: Option<u32>,
    activities: &'a [Activity],
    outliers: &'a [usize],
    warnings: &'a [String],
    hints: &'a [String],
    saved_in: &'a str,
    runs: Vec<Run<'a>>,
}

/// A machine: what was asked, and what was chosen.
#[derive(Debug, Serialize)]
pub(crate) struct Machine<'a> {
    label: &'a str,
    argv: &'a [String],
    chosen: Vec<Chosen<'a>>,
    provenance: &'a BTreeMap<String, String>,
    spec: &'a MachineSpec,
}

#[derive(Debug, Serialize)]
struct Chosen<'a> {
    what: &'a str,
    value: &'a str,
    note: &'a str,
}

#[derive(Debug, Serialize)]
struct Run<'a> {
    index: u32,
    label: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Outcome>,
    warmup: bool,
    watch: WatchLevel,
    total_s: f64,
    coverage: f64,
    steal_s: f64,
    cpu_s: f64,
    usage: &'a Usage,
    icount: bool,
    exec_monotonic_ns: Ns,
    argv: &'a [String],
    injected: &'a [String],
    sources: Vec<Source<'a>>,
    phases: Vec<RunPhase<'a>>,
    counts: &'a Counts,
    marks: Vec<Mark<'a>>,
    warnings: Vec<&'a str>,
    spans: Vec<SpanRow<'a>>,
    overlapping: Vec<SpanRow<'a>>,
}

#[derive(Debug, Serialize)]
struct Source<'a> {
    name: &'a str,
    clock: &'a str,
    error_s: f64,
    files: &'a [String],
}

#[derive(Debug, Serialize)]
struct RunPhase<'a> {
    name: &'a str,
    total_s: f64,
}

#[derive(Debug, Serialize)]
struct Mark<'a> {
    at_s: f64,
    text: &'a str,
}

#[derive(Debug, Serialize)]
struct SpanRow<'a> {
    id: u32,
    parent: Option<u32>,
    name: &'a str,
    start_s: f64,
    end_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    insns: Option<u64>,
    source: &'a str,
    error_s: f64,
}

/// The body of a boot's JSON.
pub(super) fn body(result: &BootResult) -> Body<'_> {
    Body {
        machine: machine(&result.machine),
        total: result.total,
        phases: &result.phases,
        counts: &result.counts,
        overhead: result.overhead.as_ref(),
        counted_in: result.counted_in,
        activities: &result.activities,
        outliers: &result.outliers,
        warnings: &result.warnings,
        hints: &result.hints,
        saved_in: &result.saved_in,
        runs: result.runs.iter().map(run).collect(),
    }
}

/// A machine as every command's JSON shows it.
pub(crate) fn machine(machine: &SessionMachine) -> Machine<'_> {
    let chosen = machine.chosen.iter();
    Machine {
        label: &machine.label,
        argv: &machine.argv,
        chosen: chosen.map(|(what, value, note)| Chosen { what, value, note }).collect(),
        provenance: &machine.provenance,
        spec: &machine.spec,
    }
}

fn run(run: &AnalysedRun) -> Run<'_> {
    let (record, timeline) = (&run.record, &run.timeline);
    let phases = timeline.phases.iter();
    let marks = timeline.marks.iter();
    Run {
        index: record.index,
        label: &record.label,
        outcome: outcome_word(&record.outcome),
        failure: Some(&record.outcome).filter(|outcome| **outcome != Outcome::Done),
        warmup: record.warmup,
        watch: record.watch,
        total_s: seconds(timeline.total),
        coverage: timeline.coverage(),
        steal_s: record.steal_s,
        cpu_s: record.usage.user_s + record.usage.system_s,
        usage: &record.usage,
        icount: record.icount,
        exec_monotonic_ns: record.exec_ns,
        argv: &record.argv,
        injected: &record.injected,
        sources: record.sources.iter().map(source).collect(),
        phases: phases.map(|(name, ns)| RunPhase { name, total_s: seconds(*ns) }).collect(),
        counts: &timeline.counts,
        marks: marks.map(|(at, text)| Mark { at_s: seconds(*at), text }).collect(),
        warnings: record.warnings.iter().chain(&timeline.warnings).map(String::as_str).collect(),
        spans: timeline.spans.iter().map(span).collect(),
        overlapping: timeline.overlapping.iter().map(span).collect(),
    }
}

fn source(source: &SourceRecord) -> Source<'_> {
    Source {
        name: &source.name,
        clock: &source.clock,
        error_s: seconds(source.error_ns),
        files: &source.files,
    }
}

fn span(span: &Span) -> SpanRow<'_> {
    SpanRow {
        id: span.id,
        parent: span.parent,
        name: &span.name,
        start_s: seconds(span.start),
        end_s: seconds(span.end),
        insns: span.insns,
        source: &span.source,
        error_s: seconds(span.error_ns),
    }
}
