//! The standard boot: its tree, what each source contributes, and delays.

use crate::common;

use common::{Boot, DELAYS, INITCALLS, MS};
use std::collections::BTreeMap;
use std::fmt::Write;
use vmeter_model::{Ns, Timeline};

/// The tree as text: initcalls only where they stand out.
fn outline(timeline: &Timeline) -> String {
    let mut depths: BTreeMap<u32, usize> = BTreeMap::new();
    let mut text = String::new();
    for span in &timeline.spans {
        let depth = span.parent.map_or(0, |p| depths[&p] + 1);
        depths.insert(span.id, depth);
        if span.len() < 2 * MS && depth > 1 {
            continue;
        }
        let insns = span.insns.map_or(String::new(), |n| format!(" {} k insns", n / 1000));
        let _ = writeln!(
            text,
            "{:>9.3} {:>8.3} ms {}{}{insns}",
            span.start as f64 / 1e6,
            span.len() as f64 / 1e6,
            "  ".repeat(depth),
            span.name,
        );
    }
    let _ = writeln!(text, "\ncoverage {:.6}", timeline.coverage());
    for (name, ns) in &timeline.phases {
        let _ = writeln!(text, "{:>10.3} ms {name}", *ns as f64 / 1e6);
    }
    for (at, mark) in &timeline.marks {
        let _ = writeln!(text, "{:>10.3} ms * {mark}", *at as f64 / 1e6);
    }
    let _ = writeln!(text, "{:#?}\n{:#?}", timeline.counts, timeline.warnings);
    text
}

#[test]
fn the_standard_tree() {
    let timeline = Boot::standard().timeline();
    insta::assert_snapshot!(outline(&timeline));
}

#[test]
fn everything_is_covered_and_every_initcall_is_there() {
    let timeline = Boot::standard().timeline();
    assert!(timeline.coverage() > 0.9999, "{}", timeline.coverage());
    let calls = timeline.spans.iter().filter(|s| s.name.starts_with("initcall ")).count();
    assert_eq!(calls, INITCALLS + 1 + 4, "built in, console, modules");
    assert_eq!(timeline.counts["pci_config_reads:mch 00:00.0"], 16);
    assert_eq!(timeline.counts["pci_config_writes"], 4);
    assert!(timeline.overlapping.is_empty(), "{:?}", timeline.overlapping);
}

fn phases(timeline: &Timeline) -> BTreeMap<&str, Ns> {
    timeline.phases.iter().map(|(name, ns)| (name.as_str(), *ns)).collect()
}

#[test]
fn a_planted_delay_changes_its_phase_and_no_other() {
    let base = Boot::standard().timeline();
    let base = phases(&base);
    for delay in DELAYS {
        let delayed = Boot::delayed(delay, 77 * MS).timeline();
        for (name, ns) in phases(&delayed) {
            // vmeter holds the VMM twice.
            let planted = if *delay == "vmeter:observe" { 2 * 77 * MS } else { 77 * MS };
            let expected =
                base.get(name).copied().unwrap_or(0) + if name == *delay { planted } else { 0 };
            assert_eq!(ns, expected, "delay in {delay}, phase {name}");
        }
    }
}

#[test]
fn a_delay_in_an_initcall_is_found_in_the_activities() {
    let base = vmeter_timeline::activity_times(&Boot::standard().timeline());
    let phase = "kernel:initcalls-before-userspace";
    let slow = vmeter_timeline::activity_times(&Boot::delayed("insmod virtio_net", MS).timeline());
    let call = ("insmod virtio_net".to_owned(), "insmod virtio_net".to_owned());
    assert_eq!(slow[&call].0 - base[&call].0, MS);
    let whole = base[&(phase.to_owned(), phase.to_owned())].0;
    let named: Ns = base
        .iter()
        .filter(|((p, name), _)| {
            p == phase
                && (name.starts_with("initcall ") || name.starts_with("kernel:"))
                && name != phase
        })
        .map(|(_, (ns, _))| ns)
        .sum();
    assert_eq!(whole, named, "leaves add up to their phase");
}

/// What is lost with a source, and the coverage that must remain.
const SOURCES: &[(&str, f64, &[&str])] = &[
    ("process", 0.98, &["vmm:link", "vmm:init"]),
    ("qemu-trace", 0.999, &["kernel:load"]),
    ("tcg-plugin", 0.99, &["kernel:setup"]),
    ("firmware", 0.999, &["bios:pci-probe"]),
    ("guest-ftrace", 0.3, &["initcall fn_1_init", "/init:mount", "insmod virtio_net"]),
    ("guest-log", 0.999, &[]),
];

#[test]
fn without_a_source_names_go_and_coverage_falls() {
    let whole = Boot::standard().timeline();
    for (source, least, lost) in SOURCES {
        let timeline = Boot::standard().without(source).timeline();
        let (coverage, before) = (timeline.coverage(), whole.coverage());
        assert!(coverage >= *least && coverage <= before, "without {source}: {coverage}");
        for name in *lost {
            assert!(whole.spans.iter().any(|s| s.name == *name), "{name}");
            assert!(timeline.spans.iter().all(|s| s.name != *name), "without {source}: {name}");
        }
    }
}

#[test]
fn without_any_source_nothing_is_explained() {
    let timeline = Boot::standard().only(&[]).without("process").timeline();
    assert_eq!(timeline.coverage(), 0.0);
    assert_eq!(timeline.phases, [("unattributed".to_owned(), timeline.total)]);
}

#[test]
fn every_pair_of_sources_still_tiles() {
    for (first, _, _) in SOURCES {
        for (second, _, _) in SOURCES {
            let timeline = Boot::standard().only(&[first, second]).timeline();
            assert!(timeline.coverage() <= 1.0);
        }
    }
}
