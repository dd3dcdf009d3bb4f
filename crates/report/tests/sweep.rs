//! Sweeps and diffs in every output: snapshots, so that a change of looks is seen in review.

use insta::assert_snapshot;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;
use vmeter_model::result::{Envelope, Phase};
use vmeter_model::run::{Outcome, SessionMachine};
use vmeter_model::sweep::*;
use vmeter_model::DiffVerdict;
use vmeter_model::Estimate;
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{by_name, Output, Report, Screen};
use vmeter_report::{DiffReport, SweepReport};

/// The published example: ms by empty PCIe root ports.
const PHASES: [(&str, [f64; 5]); 5] = [
    ("bios:overhead", [874.0, 884.0, 875.0, 878.0, 935.0]),
    ("kernel:entry", [159.0, 163.0, 165.0, 174.0, 491.0]),
    ("kernel:initcalls-before-userspace", [1065.0, 1090.0, 1110.0, 1147.0, 1263.0]),
    ("/init:udev-overhead", [173.0, 187.0, 185.0, 193.0, 301.0]),
    ("unattributed", [4.0, 4.0, 4.0, 4.0, 4.0]),
];

fn estimate(mean: f64, half: f64) -> Estimate {
    let sd = half / 1.24;
    let ci95 = [mean - half, mean + half];
    Estimate { mean, median: mean, sd, ci95, min: mean - sd, max: mean + sd, n: 5 }
}

fn exact(mean: f64) -> Estimate {
    Estimate { sd: 0.0, ci95: [mean; 2], min: mean, max: mean, ..estimate(mean, 0.0) }
}

fn envelope(command: &str) -> Envelope {
    Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: command.into(),
        argv: vec!["vmeter".into(), command.into()],
        started_at: "2026-11-20T12:00:00Z".into(),
        host: [("cpu_model".to_owned(), serde_json::json!("AMD EPYC 7763"))].into(),
        provenance: [("vmeter".to_owned(), "0.1.0".to_owned())].into(),
    }
}

fn point(ports: usize) -> SweepPoint {
    let phases = PHASES.map(|(name, ms)| (name.to_owned(), ms[ports] / 1e3));
    let total: f64 = phases.iter().map(|(_, s)| s).sum();
    let share =
        |s: f64| Phase { name: String::new(), estimate: estimate(s, s / 50.0), share: s / total };
    let reads = 397.0 + 291.0 * ports as f64 + if ports > 1 { 1.0 } else { 0.0 };
    let counts = [("exits", 5000.0), ("pci_config_reads", reads)];
    let value = |(label, value): (&str, String)| (label.to_owned(), value);
    SweepPoint {
        label: format!("pcie-root-ports={ports}"),
        parameters: vec![value(("pcie-root-ports", ports.to_string()))],
        machine: SessionMachine {
            label: format!("pcie-root-ports={ports}"),
            chosen: vec![("machine".into(), "q35".into(), "--machine".into())],
            ..SessionMachine::default()
        },
        runs: vec![SweptRun {
            index: ports as u32,
            outcome: Outcome::Done,
            total_s: total,
            cpu_s: total,
            phases: phases.to_vec(),
            counts: counts.map(|(name, n)| (name.to_owned(), n)).into(),
            warnings: vec![],
            host: None,
        }],
        total: Some(estimate(total, 0.02)),
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
        a: estimate(a, a / 60.0),
        b: estimate(b, b / 60.0),
        difference: b - a,
        difference_ci95: Some([b - a - 0.01, b - a + 0.01]),
        seen_in: [if a > 0.0 { 5 } else { 0 }, if b > 0.0 { 5 } else { 0 }],
        presence,
        p_value: Some(p),
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
        total: point.total,
        icount: false,
        started_at: "2026-11-20T12:00:00Z".into(),
    }
}

fn diff() -> DiffResult {
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
        ratio: Some(estimate(1.26, 0.01)),
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

fn sweep() -> SweepResult {
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

fn text(output: &str, report: &dyn Report) -> String {
    let mut bytes = Vec::new();
    by_name(output).expect("an output").write(report, &mut bytes).expect("a Vec");
    String::from_utf8(bytes).expect("UTF-8")
}

fn on_screen(width: usize, report: &dyn Report) -> String {
    let mut bytes = Vec::new();
    let screen = Screen { width, ..Screen::PLAIN };
    Terminal { screen }.write(report, &mut bytes).expect("a Vec");
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn sweep_on_screen() {
    assert_snapshot!(on_screen(80, &SweepReport::new(&sweep())));
}

#[test]
fn diff_on_screen() {
    assert_snapshot!(on_screen(100, &DiffReport::new(&diff())));
}

#[test]
fn sweep_markdown() {
    assert_snapshot!(text("markdown", &SweepReport::new(&sweep())));
}

#[test]
fn diff_csv() {
    assert_snapshot!(text("csv", &DiffReport::new(&diff())));
}

#[test]
fn sweep_json_has_the_fields_that_scripts_rely_on() {
    let json: serde_json::Value =
        serde_json::from_str(&text("json", &SweepReport::new(&sweep()))).expect("JSON");
    assert_eq!(json["schema"], "vmeter/1");
    assert_eq!(json["points"][4]["parameters"], serde_json::json!({"pcie-root-ports": 4}));
    assert!(json["points"][0]["phases"][0]["estimate"]["ci95"].is_array());
    assert!(json["points"][0]["total"]["mean"].is_number());
    let total = &json["scaling"][0];
    assert_eq!(
        (&total["phase"], &total["parameter"]),
        (&"TOTAL".into(), &"pcie-root-ports".into())
    );
    assert_eq!(total["slope_s"], 0.035);
    assert_eq!(total["slope_ci95"].as_array().map(Vec::len), Some(2));
    let found = serde_json::json!({"between": [3.0, 4.0], "jump_s": 0.631, "p_value": 0.002});
    assert_eq!(total["breaks"], serde_json::json!([found]));
}

#[test]
fn every_width_and_output_holds() {
    let (sweep, diff) = (sweep(), diff());
    for width in [60, 72, 80, 120, 160] {
        let shown = on_screen(width, &SweepReport::new(&sweep))
            + &on_screen(width, &DiffReport::new(&diff));
        assert!(!shown.contains('\x1b'), "an escape of the guest's");
        for line in shown.lines().filter(|line| !line.starts_with("try: ")) {
            assert!(line.width() <= width, "{} > {width}: {line}", line.width());
        }
    }
    for output in ["html", "markdown", "csv", "json"] {
        let rendered =
            text(output, &SweepReport::new(&sweep)) + &text(output, &DiffReport::new(&diff));
        assert!(!rendered.contains('\x1b'), "{output}: an escape of the guest's");
    }
}
