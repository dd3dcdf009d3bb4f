//! The JSON body of a boot. Field names are fixed by schema `vmeter/1`.

use super::actionable::{things, ThingRow};
use super::causes::{known_causes, CauseRow};
use super::done_timelines;
use super::named::{named_marks, MarkRow};
use super::stages::{bars, BarRow};
use crate::json_common::{failure, watch, Comparison, End, Failure, Machine, Phase, RunPhase};
use std::collections::BTreeMap;
use vmeter_model::result::{self, AnalysedRun, BootResult};
use vmeter_model::run::{self, SourceRecord};
use vmeter_model::time::seconds;
use vmeter_model::{Ns, Process, Span};
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate};

/// Things that can be acted upon, the longest first.
const LARGEST: usize = 20;

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of BootResult {
        machine: Machine<'a>,
        total: Option<Estimate>,
        phases: Vec<Phase<'a>>,
        counts: BTreeMap<&'a str, Estimate>,
        #[serde(skip_serializing_if = "Option::is_none")]
        overhead: Option<Overhead<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        comparison: Option<Comparison<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        counted_in: Option<u32>,
        stages: Vec<BarRow> = |result| {
            bars(&done_timelines(result)).into_iter().map(BarRow::from).collect()
        },
        largest: Vec<ThingRow> = |result| {
            let things = things(&done_timelines(result)).into_iter().take(LARGEST);
            things.map(ThingRow::from).collect()
        },
        causes: Vec<CauseRow> = |result| {
            known_causes(&done_timelines(result)).into_iter().map(CauseRow::from).collect()
        },
        named_marks: Vec<MarkRow> = |result| {
            named_marks(&done_timelines(result)).into_iter().map(MarkRow::from).collect()
        },
        activities: Vec<Activity<'a>>,
        outliers: &'a [usize],
        #[serde(skip_serializing_if = "Vec::is_empty")]
        said: Vec<&'a str> = |result| result.said.iter().map(String::as_str).collect(),
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
        runs: Vec<Run<'a>>,
    }

    pub(crate) struct Overhead<'a> of result::Overhead {
        watch: &'static str = |overhead| watch(overhead.watch),
        ratio: Estimate,
        cpu_ratio: Estimate,
        #[serde(skip_serializing_if = "Option::is_none")]
        verdict: Option<&'static str> = |overhead| overhead.verdict.map(|v| v.word()),
        bound_pct: f64,
        pairs: usize,
        measured_at: &'a str,
        samples_s: Vec<(f64, f64)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        counting_ratio: Option<Estimate>,
    }

    pub(crate) struct Activity<'a> of result::Activity {
        name: &'a str,
        phase: &'a str,
        estimate: Estimate,
        own: Estimate,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<Estimate>,
        #[serde(skip_serializing_if = "Option::is_none")]
        beside: Option<Estimate>,
        insns: Option<Estimate>,
        seen_in: usize,
    }

    /// A run.
    pub(crate) struct Run<'a> of AnalysedRun {
        index: u32 = |run| run.record.index,
        label: &'a str = |run| &run.record.label,
        outcome: &'static str = |run| run.record.outcome.word(),
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure<'a>> = |run| failure(&run.record.outcome),
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<End<'a>> = |run| exported(&run.record.end),
        warmup: bool = |run| run.record.warmup,
        watch: &'static str = |run| watch(run.record.watch),
        #[serde(skip_serializing_if = "Option::is_none")]
        origin: Option<&'static str> = |run| {
            (run.record.origin != run::Origin::Boot).then(|| run.record.origin.word())
        },
        total_s: f64 = |run| seconds(run.timeline.total),
        coverage: f64 = |run| run.timeline.coverage(),
        steal_s: f64 = |run| run.record.steal_s,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu_pressure_s: Option<f64> = |run| run.record.cpu_pressure_s,
        #[serde(skip_serializing_if = "Option::is_none")]
        probe_s: Option<f64> = |run| run.record.probe_s,
        cpu_s: f64 = |run| run.record.usage.cpu_s(),
        usage: Usage = |run| exported(&run.record.usage),
        icount: bool = |run| run.record.icount,
        exec_monotonic_ns: Ns = |run| run.record.exec_ns,
        argv: &'a [String] = |run| &run.record.argv,
        injected: &'a [String] = |run| &run.record.injected,
        sources: Vec<Source<'a>> = |run| exported(&run.record.sources),
        phases: Vec<RunPhase<'a>> = |run| {
            let phases = run.timeline.phases.iter();
            phases.map(|(name, ns)| RunPhase { name, total_s: seconds(*ns) }).collect()
        },
        counts: BTreeMap<&'a str, u64> = |run| exported(&run.timeline.counts),
        marks: Vec<Mark<'a>> = |run| exported(&run.timeline.marks),
        named_marks: Vec<NamedMark<'a>> = |run| exported(&run.timeline.named_marks),
        warnings: Vec<&'a str> = |run| {
            run.record.warnings.iter().chain(&run.timeline.warnings).map(String::as_str).collect()
        },
        spans: Vec<SpanRow<'a>> = |run| exported(&run.timeline.spans),
        overlapping: Vec<SpanRow<'a>> = |run| exported(&run.timeline.overlapping),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcessRow<'a>> = |run| exported(&run.timeline.processes),
    }

    struct Usage of run::Usage {
        user_s: f64,
        system_s: f64,
        max_rss_bytes: u64,
        voluntary_switches: u64,
        involuntary_switches: u64,
        minor_faults: u64,
        major_faults: u64,
    }

    struct Source<'a> of SourceRecord {
        name: &'a str,
        clock: &'a str,
        error_s: f64 = |source| seconds(source.error_ns),
        files: &'a [String],
    }

    struct Mark<'a> of (Ns, String) {
        at_s: f64 = |(at, _)| seconds(*at),
        text: &'a str = |(_, text)| text,
    }

    struct NamedMark<'a> of (String, Ns) {
        name: &'a str = |(name, _)| name,
        at_s: f64 = |(_, at)| seconds(*at),
    }

    struct SpanRow<'a> of Span {
        id: u32,
        parent: Option<u32>,
        name: &'a str,
        start_s: f64 = |span| seconds(span.start),
        end_s: f64 = |span| seconds(span.end),
        #[serde(skip_serializing_if = "Option::is_none")]
        insns: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu_s: Option<f64> = |span| span.cpu.map(seconds),
        source: &'a str,
        error_s: f64 = |span| seconds(span.error_ns),
    }

    struct ProcessRow<'a> of Process {
        pid: i32,
        parent: Option<i32>,
        name: &'a str,
        arguments: &'a [String],
        #[serde(skip_serializing_if = "Option::is_none")]
        unit: Option<&'a str> = |process| process.unit.as_deref(),
        start_s: f64 = |process| seconds(process.start),
        end_s: Option<f64> = |process| process.end.map(seconds),
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu_s: Option<f64> = |process| process.cpu.map(seconds),
        #[serde(skip_serializing_if = "Option::is_none")]
        waited_s: Option<f64> = |process| process.waited.map(seconds),
    }
}
