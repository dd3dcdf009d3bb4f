//! Recordings of real machines, held against the tools that know them.

use crate::common;

use std::collections::HashMap;
use vmeter_trace::stat::{Report, Row};
use vmeter_trace::{open, Input};

fn report(name: &str, cpu_hz: Option<f64>) -> Report {
    let input = Input::open(&common::fixture(name)).expect("the fixture");
    common::report_of(open(input).expect("a trace"), cpu_hz)
}

/// A row of xenalyze's: count and mean cycles.
type Figures = (u64, f64);

/// xenalyze's rows by where they stand: runstates of a domain or vCPU, exits, ports.
#[derive(Default)]
struct Xenalyze {
    runstates: HashMap<(u16, Option<u16>, String), Figures>,
    exits: HashMap<String, Figures>,
    hypercalls: HashMap<String, Figures>,
    ports: HashMap<(u32, &'static str), Figures>,
}

impl Xenalyze {
    fn parse(text: &str) -> Xenalyze {
        let mut all = Xenalyze::default();
        let (mut domain, mut vcpu, mut part) = (0, None, "");
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["|--", "Domain", number, ..] => {
                    (domain, vcpu, part) = (number.parse().expect("domain"), None, "");
                }
                ["--", name, "--"] => vcpu = name.strip_prefix('v').and_then(|v| v.parse().ok()),
                ["Runstates:"] => part = "runstates",
                ["Exit", "reasons:"] => part = "exits",
                ["IO", "address", ..] => part = "ports",
                ["cpu", "affinity:", ..] | ["Guest" | "Grant" | "Emulate", ..] => {
                    part = "";
                }
                _ if part == "runstates" => {
                    let (name, rest) = line.split_once(':').expect("name: figures");
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    let key = (domain, vcpu, name.trim().to_string());
                    all.runstates.insert(key, (number(words[0]), number(words[2]) as f64));
                }
                _ if part == "exits" || part == "ports" => all.row(part, line),
                _ => {}
            }
        }
        all
    }

    /// `name count seconds share mean cyc {…}`.
    fn row(&mut self, part: &str, line: &str) {
        let Some((before, _)) = line.split_once(" cyc") else { return };
        let words: Vec<&str> = before.split_whitespace().collect();
        let [.., count, _, _, mean] = words.as_slice() else { return };
        let figures = (number(count), number(mean) as f64);
        if part == "ports" {
            let (port, direction) = words[0].split_once(':').expect("port:[d]");
            let port = u32::from_str_radix(port, 16).expect("port");
            let direction = if direction == "[r]" { "read" } else { "write" };
            self.ports.insert((port, direction), figures);
        } else if words[0].starts_with("VMEXIT_") {
            self.exits.insert(words[0].to_string(), figures);
        } else if before.trim_start().starts_with('[') {
            let name = before.split(['[', ']']).nth(1).expect("[name]").trim();
            let name = if name == "evtchn_op" { "event_channel_op" } else { name };
            self.hypercalls.insert(name.to_string(), figures);
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("a number, not {word:?}"))
}

fn check(what: &str, row: Option<&Row>, want: Figures) {
    let row = row.unwrap_or_else(|| panic!("{what}: no row"));
    assert_eq!(row.count, want.0, "{what}");
    let mean = row.mean_cycles.unwrap_or(0.0);
    // xenalyze cuts the mean to whole cycles.
    assert!((mean - want.1).abs() <= want.1 * 0.001 + 1.0, "{what}: {mean}, want {}", want.1);
}

#[test]
fn every_row_of_xenalyze_is_found_in_the_xen_trace() {
    let report = report("xen-hvm-ide-boot.xtr.gz", Some(2e9));
    let text = std::fs::read_to_string(common::fixture("xen-hvm-ide-boot.xenalyze.txt"));
    let want = Xenalyze::parse(&text.expect("the fixture"));
    assert_eq!((want.exits.len(), want.ports.len(), want.hypercalls.len()), (10, 64, 5));
    assert_eq!((report.exits.len(), report.ports.len()), (10, 64));
    for (name, figures) in &want.exits {
        check(name, report.exits.iter().find(|r| r.name == *name), *figures);
    }
    for (name, figures) in &want.hypercalls {
        check(name, report.hypercalls.iter().find(|r| r.name == *name), *figures);
    }
    for ((port, direction), figures) in &want.ports {
        let row = |r: &&Row| r.port == Some(*port) && r.direction == Some(*direction);
        check(&format!("{port:x} {direction}"), report.ports.iter().find(row), *figures);
    }
    assert_eq!(want.runstates.len(), 37);
    // A vCPU is in one state at a time, one of dom0 too.
    assert!(report.shares_of_vcpus);
    for vcpu in report.runstates.iter().filter(|r| r.vcpu.is_some() && !r.rows.is_empty()) {
        let all: f64 = vcpu.rows.iter().filter_map(|row| row.share).sum();
        assert!((all - 1.0).abs() < 1e-9, "d{}v{:?}: {all}", vcpu.domain, vcpu.vcpu);
    }
    for ((domain, vcpu, name), figures) in &want.runstates {
        let of = report.runstates.iter().find(|r| (r.domain, r.vcpu) == (*domain, *vcpu));
        let of = of.expect("a domain or vCPU");
        let row = of.rows.iter().chain(&of.runnable).find(|r| r.name == *name);
        check(&format!("d{domain} {vcpu:?} {name}"), row, *figures);
    }
    assert_eq!(report.lost_events, 0);
}

#[test]
fn the_ide_ports_stand_out_among_their_peers() {
    let report = report("xen-hvm-ide-boot.xtr.gz", Some(2e9));
    let data = report.ports.iter().find(|r| r.port == Some(0x1f0)).expect("the data port");
    assert!(data.ratio_to_peers.is_some_and(|r| r > 10.0), "{data:?}");
    assert_eq!(data.name, "IDE 1 data");
}

#[test]
fn the_nested_boot_has_its_exits_and_ports_and_says_what_was_overwritten() {
    let report = report("kvm-nested-boot.ftrace.txt.gz", None);
    assert_eq!(report.counts.get("kvm_exit"), Some(&19_978));
    assert_eq!(report.counts.get("kvm_pio"), Some(&16_446));
    assert_eq!(report.exits.iter().map(|r| r.count).sum::<u64>(), 19_978);
    assert_eq!(report.ports.iter().map(|r| r.count).sum::<u64>(), 16_446);
    assert_eq!(report.events, 279_174);
    assert_eq!(report.losses.overwritten, 1_121_770 - 279_174);
    assert_eq!(report.losses.unreadable, 0);
    let serial = |r: &&Row| r.port == Some(0x3f8) && r.direction == Some("write");
    let serial = report.ports.iter().find(serial).expect("the serial port");
    // Four of its 6,504 accesses are of two each, as CPU 1's events begin 11.4 s later than
    // CPU 0's: of 3.17, 0.49 and 0.02 s, and one of 7.39 s that ends on CPU 1.
    assert_eq!((serial.name.as_str(), serial.count, serial.cut), ("serial 1", 6_504, 4));
    assert_eq!(serial.timed, serial.count - serial.cut);
    assert!(serial.max_s.is_some_and(|s| s < 0.1), "{serial:?}");
    let longest = report.ports.iter().filter_map(|row| row.max_s).fold(0.0, f64::max);
    assert!(longest < 0.1, "{longest}");
    let vcpu = &report.threads[0];
    assert!(vcpu.vcpu);
    let split = [vcpu.guest_s, vcpu.kvm_s, vcpu.user_s, vcpu.unknown_s];
    let split = split.map(|s| s.expect("told apart"));
    assert!(split[3] > 0.4 * report.duration_s.expect("seconds"), "{split:?}");
    let whole = report.duration_s.expect("seconds");
    assert!((split.iter().sum::<f64>() / whole - 1.0).abs() < 0.01, "{split:?} of {whole}");
}

#[test]
fn dom0s_trace_counts_cycles_of_the_same_tsc() {
    let report = report("xen-hvm-ide-boot.dom0-ftrace.txt.gz", Some(2e9));
    assert_eq!(report.events, 25_988);
    assert_eq!(report.cpu_hz, Some(2e9));
    assert!(report.irqs.iter().any(|r| r.name.ends_with("resched1")), "{:?}", report.irqs);
    assert!(report.threads.iter().any(|t| t.name == "xen-qemu-system"));
}
