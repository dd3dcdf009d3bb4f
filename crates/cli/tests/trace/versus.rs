//! `vmeter trace stat A --vs B`: recordings and machines that differ, and that do not.

use crate::common::{text, Lab};
use crate::trace::{fixture, row, NESTED};
use serde_json::Value;

#[test]
fn a_trace_does_not_differ_from_itself_and_differs_from_another() {
    let lab = Lab::new();
    let same = lab.json(&["trace", "stat", &fixture(NESTED), "--vs", &fixture(NESTED)]);
    let rows = same["vs"]["rows"].as_array().expect("rows");
    assert!(rows.len() > 50);
    let differs = |row: &&Value| {
        ["counts", "times"].iter().any(|t| row[t]["p_adjusted"].as_f64().is_some_and(|p| p <= 0.05))
    };
    assert_eq!(rows.iter().filter(differs).count(), 0);
    // The same boot with the serial port ten times slower.
    let slow = lab.path("slow.txt");
    std::fs::write(&slow, serial(10)).expect("scratch space");
    let fast = lab.path("fast.txt");
    std::fs::write(&fast, serial(1)).expect("scratch space");
    let result = lab.json(&["trace", "stat", text(&fast), "--vs", text(&slow)]);
    let port = row(&result["vs"], "rows", |r| r["port"] == 0x3f8);
    assert!(port["times"]["p_adjusted"].as_f64() < Some(0.001), "{port}");
    assert!((port["times"]["ratio"].as_f64().expect("ratio") - 9.0).abs() < 0.5, "{port}");
    let other = row(&result["vs"], "rows", |r| r["port"] == 0x70);
    assert!(other["times"]["p_adjusted"].as_f64() > Some(0.05), "{other}");
    let shown = lab.run(&["trace", "stat", text(&fast), "--vs", text(&slow)]).stdout;
    assert!(shown.contains("0x3f8") && !shown.contains("0x70 "), "{shown}");
    assert!(shown.contains("The recordings"), "{shown}");
    let refused = lab.run(&["trace", "stat", text(&fast), text(&slow), "--vs", text(&fast)]);
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("2 traces before --vs and 1"), "{}", refused.stderr);
}

#[test]
fn several_traces_a_side_tell_machines_from_recordings() {
    let lab = Lab::new();
    let recorded = |times: u64| {
        let path = lab.path(&format!("{times}.txt"));
        std::fs::write(&path, serial(times)).expect("scratch space");
        path
    };
    let compared = |ours: [u64; 3], theirs: [u64; 3]| {
        let (ours, theirs) = (ours.map(recorded), theirs.map(recorded));
        let mut words = vec!["trace", "stat"];
        words.extend(ours.iter().map(|path| text(path)));
        words.extend(theirs.iter().flat_map(|path| ["--vs", text(path)]));
        let result = lab.json(&words);
        let port = row(&result["vs"], "rows", |r| r["port"] == 0x3f8).clone();
        assert_eq!(port["times"]["basis"], "traces", "{port}");
        port["times"]["p_adjusted"].as_f64().expect("a test")
    };
    assert!(compared([4, 5, 6], [40, 50, 60]) < 0.05);
    // As two single recordings, 4 and 6 differ beyond doubt.
    assert!(compared([4, 6, 5], [6, 4, 7]) > 0.05);
}

/// Review E12.
/// Boots of one machine never have the same counts. As Poisson counts these recordings differ
/// beyond doubt: of two alone no more is said, and among several it is their scatter.
#[test]
fn counts_that_scatter_between_boots_are_no_difference_of_machines() {
    let lab = Lab::new();
    let recorded = |count: u64| {
        let path = lab.path(&format!("{count}-events.txt"));
        std::fs::write(&path, ports(count, 1)).expect("scratch space");
        path
    };
    let words = |ours: &[u64], theirs: &[u64]| -> Vec<String> {
        let [ours, theirs] =
            [ours, theirs].map(|side| side.iter().map(|n| recorded(*n).display().to_string()));
        let theirs = theirs.flat_map(|path| ["--vs".to_owned(), path]);
        let per = ["--per", "trace"].map(str::to_owned);
        ["trace", "stat"]
            .map(str::to_owned)
            .into_iter()
            .chain(ours)
            .chain(theirs)
            .chain(per)
            .collect()
    };
    let differs = |ours: &[u64], theirs: &[u64]| {
        let words = words(ours, theirs);
        let result = lab.json(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let port = row(&result["vs"], "rows", |r| r["port"] == 0x3f8);
        port["counts"]["p_adjusted"].as_f64().expect("a test") < 0.05
    };
    assert!(differs(&[4000], &[4400]));
    let two = words(&[4000], &[4400]);
    let shown = lab.run(&two.iter().map(String::as_str).collect::<Vec<_>>()).stdout;
    let said = crate::common::one_line(&shown);
    assert!(said.contains("The recordings"), "{shown}");
    assert!(said.contains("Even two recordings of the same machine differ"), "{shown}");
    assert!(!differs(&[4000, 4400, 4200], &[4400, 4040, 4480]));
    assert!(differs(&[4000, 4400, 4200], &[6000, 6500, 6300]));
}

/// A guest that writes to its serial port and reads its clock in turn, the first taking
/// `times` as long.
fn serial(times: u64) -> String {
    ports(4000, times)
}

/// As [`serial`], so many of both together.
fn ports(count: u64, times: u64) -> String {
    let mut text = String::from("# tracer: nop\n");
    let mut now = 1_000_000;
    for n in 0..count {
        let (port, took) =
            if n % 2 == 0 { ("pio_write at 0x3f8", 20 * times) } else { ("pio_read at 0x70", 20) };
        let took = took + n % 7;
        let stamp = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        for (at, event) in [
            (now, "kvm_exit: reason io rip 0x1".to_string()),
            (now + 1, format!("kvm_pio: {port} size 1 count 1 val 0x35 ")),
            (now + took, "kvm_entry: vcpu 0, rip 0x1".to_string()),
        ] {
            text += &format!("  qemu-12 [000] ..... {}: {event}\n", stamp(at));
        }
        now += 1000;
    }
    text
}
