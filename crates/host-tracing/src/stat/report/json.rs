//! The fields after the envelope: a trace's own for one trace; for several, rows that name
//! their file. Field names are fixed by schema `vmeter/1`.

use super::{NamedTrace, TraceStatReport};
use serde::Serialize;
use std::collections::BTreeMap;
use vmeter_render::exported;
use vmeter_render::exported::{exported, Of};
use vmeter_trace::format;
use vmeter_trace::stat::report;
use vmeter_trace::stat::versus::{self, Per};

exported! {
    struct Trace<'a> of report::Report {
        format: &'static str,
        clock: &'a str,
        cpu_hz: Option<f64>,
        events: u64,
        lost_events: u64,
        losses: Losses<'a>,
        duration_s: Option<f64>,
        vcpu_time_s: Option<f64>,
        counts: BTreeMap<&'a str, u64>,
        ports: Vec<Row<'a>>,
        mmio: Vec<Row<'a>>,
        msrs: Vec<Row<'a>>,
        exits: Vec<Row<'a>>,
        userspace_exits: Vec<Row<'a>>,
        hypercalls: Vec<Row<'a>>,
        syscalls: Vec<Row<'a>>,
        ioctls: Vec<Row<'a>>,
        irqs: Vec<Row<'a>>,
        vectors: Vec<Row<'a>>,
        ipis: Vec<Row<'a>>,
        ipi_sends: Vec<Row<'a>>,
        works: Vec<Row<'a>>,
        threads: Vec<Thread<'a>>,
        runstates: Vec<Runstates<'a>>,
    }

    struct Losses<'a> of format::Losses {
        lost_events: u64,
        uncounted_gaps: u64,
        overwritten: u64,
        unreadable: u64,
        missing: &'a [String],
    }

    struct Row<'a> of report::Row {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        msr: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        direction: Option<&'static str>,
        count: u64,
        timed: u64,
        cut: u64,
        total_s: Option<f64>,
        mean_s: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        mean_cycles: Option<f64>,
        median_s: Option<f64>,
        p99_s: Option<f64>,
        max_s: Option<f64>,
        share: Option<f64>,
        ratio_to_peers: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<&'a str>,
    }

    struct Thread<'a> of report::ThreadTimes {
        thread: &'a str,
        name: &'a str,
        vcpu: bool,
        running_s: Option<f64>,
        guest_s: Option<f64>,
        kvm_s: Option<f64>,
        kernel_s: Option<f64>,
        user_s: Option<f64>,
        runnable_s: Option<f64>,
        blocked_s: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        unknown_s: Option<f64>,
    }

    struct Runstates<'a> of report::Runstates {
        domain: u16,
        vcpu: Option<u16>,
        rows: Vec<Row<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        runnable: Vec<Row<'a>>,
    }

    struct Versus<'a> of versus::Versus {
        a: String = |versus| versus.a.join(", "),
        b: String = |versus| versus.b.join(", "),
        per: &'static str = |versus| match versus.per {
            Per::Second => "second",
            Per::Trace => "trace",
        },
        tests: usize,
        rows: Vec<VersusRow<'a>>,
    }

    struct VersusRow<'a> of versus::VersusRow {
        table: &'static str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        direction: Option<&'static str>,
        a: Side,
        b: Side,
        counts: Option<Test>,
        times: Option<Test>,
    }

    struct Side of versus::Side {
        count: u64,
        per_s: Option<f64>,
        total_s: Option<f64>,
        median_s: Option<f64>,
    }

    struct Test of versus::Test {
        ratio: Option<f64>,
        p_value: f64,
        p_adjusted: f64,
        basis: &'static str,
    }
}

#[derive(Serialize)]
struct One<'a> {
    file: &'a str,
    #[serde(flatten)]
    trace: Trace<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vs: Option<Versus<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Several<'a> {
    events: u64,
    lost_events: u64,
    #[serde(flatten)]
    tables: BTreeMap<&'static str, Vec<Named<'a, Row<'a>>>>,
    traces: Vec<Named<'a, Trace<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vs: Option<Versus<'a>>,
    warnings: &'a [String],
}

/// Something of a file.
#[derive(Serialize)]
struct Named<'a, T> {
    file: &'a str,
    #[serde(flatten)]
    what: T,
}

pub(super) fn body<'a>(report: &'a TraceStatReport<'_>) -> Box<dyn erased_serde::Serialize + 'a> {
    let (warnings, vs) = (report.warnings, report.versus.map(Versus::of));
    if let [NamedTrace { file, report: one }] = report.traces[..] {
        return Box::new(One { file, trace: exported(one), vs, warnings });
    }
    let traces = &report.traces;
    let mut tables: BTreeMap<&'static str, Vec<Named<'_, Row<'_>>>> = BTreeMap::new();
    for NamedTrace { file, report } in traces {
        for (name, rows) in report.tables() {
            let rows = rows.iter().map(|row| Named { file, what: exported(row) });
            tables.entry(name).or_default().extend(rows);
        }
    }
    Box::new(Several {
        events: traces.iter().map(|t| t.report.events).sum(),
        lost_events: traces.iter().map(|t| t.report.lost_events).fold(0, u64::saturating_add),
        tables,
        traces: traces.iter().map(|t| Named { file: t.file, what: exported(t.report) }).collect(),
        vs,
        warnings,
    })
}
