//! Boots and benches with the shape and size of real ones.
//!
//! The spans tile their run to the nanosecond, as the timeline's do; lengths
//! differ from run to run by a fixed pseudo-random sequence.

use super::{envelope, estimate, words};
use std::collections::BTreeMap;
use vmeter_model::result::*;
use vmeter_model::run::*;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::{seconds, ClockReading};
use vmeter_model::{Counts, Estimate, MachineSpec, Ns, Span, Timeline};
use vmeter_model::{OverheadVerdict, Verdict};

/// Phases: name, source, length in µs, parts (name, length in µs). What the
/// parts leave open is the phase's own, or `unattributed` among the initcalls.
type Plan = &'static [(&'static str, &'static str, i64, &'static [(&'static str, i64)])];

const PLAN: Plan = &[
    ("vmm:link", "ptrace", 6_412, &[]),
    ("vmm:init", "qemu-trace", 61_840, &[("machine_init", 41_200), ("device realize", 14_300)]),
    ("bios:overhead", "debugcon", 152_300, &[("PCI scan", 61_000), ("option ROMs", 40_300)]),
    ("kernel:load", "qemu-trace", 41_050, &[]),
    ("kernel:decompress", "tcg-plugin", 812_400, &[]),
    ("kernel:entry", "tcg-plugin", 402_100, &[("setup_arch", 151_900), ("mm_init", 88_000)]),
    (
        "kernel:initcalls-before-userspace",
        "guest-ftrace",
        1_631_000,
        &[
            ("initcall pci_subsys_init", 182_300),
            ("initcall acpi_init", 431_700),
            ("initcall cryptomgr_init", 702_900),
            ("initcall serial8250_init", 31_200),
            ("initcall virtio_pci_driver_init", 201_000),
        ],
    ),
    (
        "/init:udev-overhead",
        "guest-ftrace",
        421_700,
        &[("insmod virtio_blk", 41_000), ("insmod virtio_net", 62_500)],
    ),
    ("/init:mount", "guest-ftrace", 21_300, &[]),
    ("shutdown", "guest-ftrace", 203_900, &[("kernel:device_shutdown", 120_000)]),
    (UNATTRIBUTED, "none", 61_007, &[]),
];

struct Sequence(u64);

impl Sequence {
    /// A factor around 1, as a host's noise makes it.
    fn jitter(&mut self, spread: f64) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        1.0 + spread * (2.0 * unit - 1.0)
    }

    fn ns(&mut self, micros: i64, spread: f64) -> Ns {
        (micros as f64 * 1000.0 * self.jitter(spread)) as Ns
    }
}

fn timeline(sequence: &mut Sequence, slowdown: f64, counted: bool) -> Timeline {
    let mut spans = vec![span(0, None, "boot", 0, 0, "ptrace")];
    let mut phases = Vec::new();
    let mut at: Ns = 0;
    for (name, source, micros, parts) in PLAN {
        let length = (sequence.ns(*micros, 0.04) as f64 * slowdown) as Ns;
        let phase = spans.len() as u32;
        spans.push(span(phase, Some(0), name, at, at + length, source));
        let mut inside = at;
        for (part, micros) in *parts {
            let end = (inside + sequence.ns(*micros, 0.03)).min(at + length);
            spans.push(span(spans.len() as u32, Some(phase), part, inside, end, source));
            inside = end;
        }
        if !parts.is_empty() && inside < at + length {
            let id = spans.len() as u32;
            let rest = if name.contains("initcalls") { UNATTRIBUTED } else { name };
            spans.push(span(id, Some(phase), rest, inside, at + length, source));
        }
        phases.push((name.to_string(), length));
        at += length;
    }
    spans[0].end = at;
    if counted {
        for span in &mut spans {
            span.insns = Some((span.end - span.start) as u64 / 5 * 2);
        }
    }
    let counts = [
        ("pci_config_reads", 2_331),
        ("pci_config_writes", 664),
        ("guest_insns", 1_309_442_113),
        ("console_bytes", 812 + (at % 7) as u64),
    ];
    let overlapping = vec![
        span(
            0,
            None,
            "initcall async raid6_select_algo",
            at / 2,
            at / 2 + 91_000_000,
            "guest-ftrace",
        ),
        span(1, None, "insmod virtio_rng", at * 4 / 5, at * 4 / 5 + 31_000_000, "guest-ftrace"),
    ];
    Timeline {
        total: at,
        spans,
        overlapping,
        processes: Vec::new(),
        marks: vec![(at / 3, "Linux version 6.1.0-56-cloud-amd64".into())],
        named_marks: vec![("app: listening".into(), at * 9 / 10)],
        command_line: None,
        counts: counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect(),
        phases,
        printing: None,
        warnings: Vec::new(),
    }
}

fn span(id: u32, parent: Option<u32>, name: &str, start: Ns, end: Ns, source: &str) -> Span {
    let (name, source) = (name.to_owned(), source.to_owned());
    Span { id, parent, name, start, end, insns: None, cpu: None, source, error_ns: 1_200 }
}

fn record(index: u32, total_ns: Ns) -> RunRecord {
    let exec_ns = 81_000_123_456_789 + Ns::from(index) * 6_000_000_000;
    let reading = |monotonic_ns: Ns| ClockReading {
        monotonic_ns,
        realtime_ns: 1_790_000_000_000_000_000 + monotonic_ns,
        tsc: monotonic_ns as u64 * 5 / 2,
        width_ns: 60,
    };
    RunRecord {
        schema: vmeter_model::SCHEMA.into(),
        index,
        label: "default".into(),
        warmup: false,
        watch: WatchLevel::Light,
        origin: Default::default(),
        argv: words(
            "qemu-system-x86_64 -machine q35 -accel tcg -kernel vmlinuz -append console=ttyS0",
        ),
        injected: vec!["-trace events=FILE".into(), "kernel: quiet trace_event=initcall:*".into()],
        outlived: false,
        runs_on: false,
        exec_ns,
        total_ns,
        looked_ns: 0,
        clocks: vec![reading(exec_ns - 1_000_000), reading(exec_ns + total_ns + 1_000_000)],
        outcome: Outcome::Done,
        end: None,
        usage: Usage {
            user_s: 3.412,
            system_s: 0.291,
            max_rss_bytes: 312 << 20,
            voluntary_switches: 812,
            involuntary_switches: 77,
            minor_faults: 61_022,
            major_faults: 0,
        },
        steal_s: 0.004,
        cpu_pressure_s: None,
        probe_s: None,
        probes: 0,
        moments: vec![(6_412_000, "vmm-entry".into())],
        sources: vec![SourceRecord {
            name: "guest-ftrace".into(),
            files: vec!["ftrace.bin".into()],
            clock: "guest TSC, one offset".into(),
            error_ns: 1_200,
            parameters: BTreeMap::new(),
        }],
        icount: false,
        warnings: Vec::new(),
        marks: Vec::new(),
    }
}

fn machine(label: &str) -> SessionMachine {
    let chosen = [
        ("accelerator", "tcg", "/dev/kvm is there but runs guest code 2000 x slower; --accel"),
        ("vmm", "QEMU 7.2.22 (/usr/bin/qemu-system-x86_64)", "--vmm"),
        ("machine", "q35, 1 vCPU, 512 MiB", "--machine, --smp, --memory"),
        ("firmware", "SeaBIOS 1.16.2", "--firmware"),
        ("kernel", "6.1.0-56-cloud-amd64", "--kernel"),
        ("command line", "console=ttyS0 panic=-1 quiet", "--append adds to it"),
    ];
    SessionMachine {
        label: label.into(),
        spec: MachineSpec { until: Some("poweroff".into()), ..MachineSpec::default() },
        chosen: chosen.map(|(a, b, c)| vmeter_model::ResolvedOption::new(a, b, c)).into(),
        provenance: [("kernel".into(), "sha256:5d1f0c".into())].into(),
        argv: words("qemu-system-x86_64 -machine q35 -accel tcg -kernel vmlinuz"),
        ..SessionMachine::default()
    }
}

fn phases(runs: &[AnalysedRun], total: f64) -> Vec<Phase> {
    let names = runs[0].timeline.phases.iter().map(|(name, _)| name.clone());
    let phase = |(at, name): (usize, String)| {
        let samples: Vec<f64> = runs.iter().map(|r| seconds(r.timeline.phases[at].1)).collect();
        let estimate = estimate(&samples);
        Phase { name, estimate, share: estimate.mean / total }
    };
    names.enumerate().map(phase).collect()
}

fn activities(runs: &[AnalysedRun], counted: bool) -> Vec<Activity> {
    let first = &runs[0].timeline;
    let inner =
        first.spans.iter().filter(|s| s.parent.is_some_and(|p| p > 0) && s.name != UNATTRIBUTED);
    let activity = |span: &Span| {
        let phase = &first.spans[span.parent.unwrap_or(0) as usize].name;
        let length = |run: &AnalysedRun| {
            let same = run.timeline.spans.iter().find(|other| other.name == span.name);
            same.map_or(0.0, |same| seconds(same.len()))
        };
        let samples: Vec<f64> = runs.iter().map(length).collect();
        Activity {
            name: span.name.clone(),
            phase: phase.clone(),
            estimate: estimate(&samples),
            own: estimate(&samples),
            cpu: None,
            beside: None,
            insns: counted.then(|| estimate(&samples.iter().map(|s| s * 4e8).collect::<Vec<_>>())),
            seen_in: runs.len(),
        }
    };
    let mut activities: Vec<Activity> = inner.map(activity).collect();
    activities.sort_by(|a, b| b.estimate.mean.total_cmp(&a.estimate.mean));
    activities
}

/// A boot of `n` runs that all reached the end; with instruction counts if `counted`.
pub fn boot(n: u32, counted: bool) -> BootResult {
    let mut sequence = Sequence(7);
    let runs: Vec<AnalysedRun> = (0..n)
        .map(|index| {
            let slowdown = if index == 6 { 1.15 } else { 1.0 };
            let timeline = timeline(&mut sequence, slowdown, counted);
            AnalysedRun { record: record(index, timeline.total), timeline }
        })
        .collect();
    let total = estimate(&runs.iter().map(|r| seconds(r.timeline.total)).collect::<Vec<_>>());
    let mut counts: BTreeMap<String, Estimate> = BTreeMap::new();
    for name in runs[0].timeline.counts.keys() {
        let sample = |run: &AnalysedRun| *count(&run.timeline.counts, name) as f64;
        counts.insert(name.clone(), estimate(&runs.iter().map(sample).collect::<Vec<_>>()));
    }
    BootResult {
        envelope: envelope("boot"),
        machine: machine("default"),
        phases: phases(&runs, total.mean),
        activities: activities(&runs, counted),
        counts,
        total: Some(total),
        overhead: Some(overhead()),
        comparison: None,
        not_compared: None,
        counted_in: None,
        outliers: if n > 6 { vec![6] } else { Vec::new() },
        said: Vec::new(),
        warnings: vec!["the host's load was 1.8 on 2 CPUs when the runs began".into()],
        hints: vec!["vmeter boot --append cryptomgr.notests".into()],
        saved_in: "/home/user/.local/state/vmeter/runs/2026-11-20T12-00-00-boot".into(),
        runs,
    }
}

fn count<'a>(counts: &'a Counts, name: &str) -> &'a u64 {
    counts.get(name).unwrap_or(&0)
}

fn overhead() -> Overhead {
    let samples_s: Vec<(f64, f64)> =
        (0..12).map(|i| (3.9 + 0.01 * f64::from(i % 5), 3.85)).collect();
    let ratio = estimate(&samples_s.iter().map(|(a, b)| a / b).collect::<Vec<_>>());
    Overhead {
        counting_ratio: None,
        watch: WatchLevel::Light,
        ratio,
        verdict: Some(OverheadVerdict::Within),
        bound_pct: 3.0,
        cpu_ratio: estimate(&[1.01, 1.02, 1.005, 1.015]),
        pairs: 12,
        measured_at: "2026-11-19T08:30:00Z".into(),
        samples_s,
    }
}

/// A boot that never got anywhere: three runs, three ways to fail.
pub fn failed_boot() -> BootResult {
    let mut result = boot(3, false);
    let failures = [
        Outcome::Panicked {
            line: "Kernel panic - not syncing: IO-APIC + timer doesn't work!".into(),
        },
        Outcome::VmmFailed {
            status: "exit status 1".into(),
            stderr: "qemu: warning\nqemu: could not load kernel 'x': No such file\n".into(),
        },
        Outcome::TimedOut { last: "Freeing SMP alternatives memory: 36K".into() },
    ];
    for (run, failure) in result.runs.iter_mut().zip(failures) {
        run.record.outcome = failure;
        run.timeline.warnings = vec!["the guest's trace buffer was not found in its RAM".into()];
    }
    result.total = None;
    result.outliers.clear();
    result
}

fn bench_machine(label: &str, mean: f64, sequence: &mut Sequence) -> BenchMachine {
    let samples_s: Vec<f64> = (0..12).map(|_| mean * sequence.jitter(0.04)).collect();
    let cpu_samples_s: Vec<f64> = samples_s.iter().map(|s| s * 0.93).collect();
    BenchMachine {
        label: label.into(),
        estimate: estimate(&samples_s),
        cpu: estimate(&cpu_samples_s),
        samples_s,
        cpu_samples_s,
        max_rss_bytes: 301 << 20,
        failures: Vec::new(),
        end: None,
        outliers: Vec::new(),
        machine: machine(label),
    }
}

fn comparison(a: &BenchMachine, b: &BenchMachine, p_value: f64, verdict: Verdict) -> Comparison {
    let ratios =
        |a: &[f64], b: &[f64]| estimate(&a.iter().zip(b).map(|(a, b)| b / a).collect::<Vec<_>>());
    Comparison {
        a: a.label.clone(),
        b: b.label.clone(),
        ratio: ratios(&a.samples_s, &b.samples_s),
        mean_ratio: ratios(&a.samples_s, &b.samples_s),
        mean_alone: None,
        tail: None,
        sure_pct: 95.0,
        cpu_ratio: ratios(&a.cpu_samples_s, &b.cpu_samples_s),
        p_value,
        verdict,
        detectable_pct: Some(1.7),
        margin_pct: 2.0,
        pairs: a.samples_s.len(),
        pairs_needed: 6,
        exact: false,
    }
}

/// A run that did not end as it should.
pub fn failed_run(run: u32, outcome: Outcome) -> FailedRun {
    FailedRun { run, outcome, end: None }
}

/// A bench of three machines: a baseline, a faster one, and one that is the same.
pub fn bench() -> BenchResult {
    let mut sequence = Sequence(11);
    let mut machines = vec![
        bench_machine("default", 3.904, &mut sequence),
        bench_machine("firmware=qboot,machine=pvh", 1.912, &mut sequence),
        bench_machine("append=quiet", 3.897, &mut sequence),
    ];
    machines[1].outliers = vec![4];
    machines[2].failures =
        vec![failed_run(5, Outcome::Panicked { line: "Kernel panic - not syncing: VFS".into() })];
    let comparisons = vec![
        comparison(&machines[0], &machines[1], 0.000_02, Verdict::Faster),
        comparison(&machines[0], &machines[2], 0.61, Verdict::NoDifference),
    ];
    BenchResult {
        envelope: envelope("bench"),
        machines,
        comparisons,
        not_compared: Vec::new(),
        said: Vec::new(),
        warnings: Vec::new(),
        hints: vec!["vmeter bench --runs 40 --vs append=quiet".into()],
        saved_in: "/home/user/.local/state/vmeter/runs/2026-11-20T12-10-00-bench".into(),
    }
}
