//! A sweep over five points, and a diff of its last two.

use super::envelope;
use std::collections::BTreeMap;
use vmeter_model::result::Phase;
use vmeter_model::run::{Outcome, SessionMachine};
use vmeter_model::sweep::*;
use vmeter_model::DiffVerdict;
use vmeter_model::Estimate;

/// The published example: ms by empty PCIe root ports.
const PHASES: [(&str, [f64; 5]); 5] = [
    ("bios:overhead", [874.0, 884.0, 875.0, 878.0, 935.0]),
    ("kernel:entry", [159.0, 163.0, 165.0, 174.0, 491.0]),
    ("kernel:initcalls-before-userspace", [1065.0, 1090.0, 1110.0, 1147.0, 1263.0]),
    ("/init:udev-overhead", [173.0, 187.0, 185.0, 193.0, 301.0]),
    ("unattributed", [4.0, 4.0, 4.0, 4.0, 4.0]),
];

fn interval(mean: f64, half: f64) -> Estimate {
    let sd = half / 1.24;
    let ci95 = [mean - half, mean + half];
    Estimate { mean, median: mean, sd, ci95, min: mean - sd, max: mean + sd, n: 5 }
}

fn exact(mean: f64) -> Estimate {
    Estimate { sd: 0.0, ci95: [mean; 2], min: mean, max: mean, ..interval(mean, 0.0) }
}

fn point(ports: usize) -> SweepPoint {
    let phases = PHASES.map(|(name, ms)| (name.to_owned(), ms[ports] / 1e3));
    let total: f64 = phases.iter().map(|(_, s)| s).sum();
    let share =
        |s: f64| Phase { name: String::new(), estimate: interval(s, s / 50.0), share: s / total };
    let reads = 397.0 + 291.0 * ports as f64 + if ports > 1 { 1.0 } else { 0.0 };
    let counts = [("exits", 5000.0), ("pci_config_reads", reads)];
    let value = |(label, value): (&str, String)| (label.to_owned(), value);
    SweepPoint {
        label: format!("pcie-root-ports={ports}"),
        parameters: vec![value(("pcie-root-ports", ports.to_string()))],
        machine: SessionMachine {
            label: format!("pcie-root-ports={ports}"),
            chosen: vec![vmeter_model::ResolvedOption::new("machine", "q35", "--machine")],
            ..SessionMachine::default()
        },
        runs: vec![SweptRun {
            index: ports as u32,
            outcome: Outcome::Done,
            end: None,
            total_s: total,
            cpu_s: total,
            phases: phases.to_vec(),
            counts: counts.map(|(name, n)| (name.to_owned(), n)).into(),
            warnings: vec![],
            host: None,
        }],
        total: Some(interval(total, 0.02)),
        phases: phases.iter().map(|(name, s)| Phase { name: name.clone(), ..share(*s) }).collect(),
        counts: counts.map(|(name, n)| (name.to_owned(), exact(n))).into(),
    }
}

fn scaling(series: Series, name: &str, slope: f64, half: f64, jump: Option<f64>) -> Scaling {
    let found = |jump| SweepBreak { between: [3.0, 4.0], jump, p_value: 0.002 };
    Scaling {
        series,
        name: name.into(),
        phase: (series == Series::Activity).then(|| "kernel:entry".into()),
        parameter: "pcie-root-ports".into(),
        at: vec![],
        slope,
        slope_ci95: [slope - half, slope + half],
        p_value: 0.0004,
        exact_step: None,
        usual_step: (series == Series::Count).then_some(291.0),
        breaks: jump.map(found).into_iter().collect(),
        detectable_jump: None,
    }
}

fn row(kind: DiffKind, name: &str, a: f64, b: f64, p: f64) -> DiffRow {
    let presence = match (a, b) {
        (0.0, _) => Presence::New,
        (_, 0.0) => Presence::Gone,
        _ => Presence::Both,
    };
    DiffRow {
        kind,
        name: name.into(),
        place: (kind == DiffKind::Activity).then(|| "kernel:entry".into()),
        a: interval(a, a / 60.0),
        b: interval(b, b / 60.0),
        difference: b - a,
        difference_ci95: Some([b - a - 0.01, b - a + 0.01]),
        seen_in: [if a > 0.0 { 5 } else { 0 }, if b > 0.0 { 5 } else { 0 }],
        presence,
        p_value: Some(p),
        p_value_levelled: None,
        significant: p <= 0.04,
    }
}

fn side(ports: usize) -> DiffSide {
    let point = point(ports);
    DiffSide {
        name: point.label.clone(),
        label: point.label,
        runs: vec![0, 1, 2, 3, 4],
        samples_s: vec![2.3, 2.31, 2.29, 2.3, 2.32],
        reached: true,
        total: point.total,
        icount: false,
        started_at: "2026-11-20T12:00:00Z".into(),
    }
}

pub fn diff() -> DiffResult {
    let line = DiffRow {
        place: Some("kernel".into()),
        difference_ci95: None,
        ..row(DiffKind::Line, "pci #:#:#.#: waiting \u{1b}[31m", 0.0, 1.0, 0.008)
    };
    DiffResult {
        envelope: envelope("diff"),
        a: side(3),
        b: side(4),
        verdict: DiffVerdict::Slower,
        ratio: Some(interval(1.26, 0.01)),
        exact: false,
        rows: vec![
            row(DiffKind::Total, "TOTAL", 2.396, 2.994, 0.0001),
            row(DiffKind::Phase, "kernel:entry", 0.174, 0.491, 0.0001),
            row(DiffKind::Activity, "kernel:pci-scan", 0.0, 0.3, 0.0001),
            row(DiffKind::Count, "pci_config_reads", 1271.0, 1562.0, 0.0001),
            row(DiffKind::Phase, "bios:overhead", 0.878, 0.882, 0.62),
        ],
        lines: vec![line],
        settings: vec![DiffSetting {
            name: "pcie-root-ports".into(),
            a: "3".into(),
            b: "4".into(),
        }],
        tests: 140,
        warnings: vec!["sample".into()],
        hints: vec![],
    }
}

pub fn sweep() -> SweepResult {
    let points: Vec<SweepPoint> = (0..5).map(point).collect();
    let steps = points.windows(2).enumerate().map(|(n, w)| {
        let mean = |p: &SweepPoint| p.total.map_or(0.0, |t| t.mean);
        let reads = |p: &SweepPoint| p.counts["pci_config_reads"].mean;
        let rise = mean(&w[1]) - mean(&w[0]);
        MarginalStep {
            parameter: "pcie-root-ports".into(),
            at: vec![],
            between: [n as f64, n as f64 + 1.0],
            labels: [w[0].label.clone(), w[1].label.clone()],
            total_s: rise,
            total_ci95: Some([rise - 0.02, rise + 0.02]),
            counts: BTreeMap::from([("pci_config_reads".into(), reads(&w[1]) - reads(&w[0]))]),
        }
    });
    SweepResult {
        envelope: envelope("sweep"),
        parameters: vec![SweptParameter {
            name: "pcie-root-ports".into(),
            values: (0..5).map(|n| n.to_string()).collect(),
            numeric: true,
        }],
        scaling: vec![
            scaling(Series::Total, "TOTAL", 0.035, 0.004, Some(0.631)),
            scaling(Series::Phase, "kernel:entry", 0.007, 0.002, Some(0.31)),
            scaling(Series::Count, "pci_config_reads", 291.0, 0.1, None),
            scaling(Series::Activity, "initcall acpi_init", 0.006, 0.001, None),
        ],
        steps: steps.collect(),
        points,
        comparisons: vec![],
        explained: vec![ExplainedBreak {
            parameter: "pcie-root-ports".into(),
            between: [3.0, 4.0],
            diff: diff(),
        }],
        hosts: vec![],
        warnings: vec![],
        hints: vec!["vmeter diff a b".into()],
        saved_in: "runs/sweep".into(),
    }
}
