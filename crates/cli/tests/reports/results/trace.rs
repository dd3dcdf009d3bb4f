//! Small statistics of traces: one of KVM, one of Xen, and two compared.

use vmeter_trace::format::Losses;
use vmeter_trace::stat::report::{Runstates, ThreadTimes};
use vmeter_trace::stat::versus::{Per, Side, Test, Versus, VersusRow};
use vmeter_trace::stat::{Report, Row};

fn row(name: &str, count: u64, mean_s: f64) -> Row {
    Row {
        name: name.into(),
        count,
        timed: count,
        cut: 1,
        total_s: Some(count as f64 * mean_s),
        mean_s: Some(mean_s),
        median_s: Some(mean_s * 0.75),
        p99_s: Some(mean_s * 4.0),
        max_s: Some(mean_s * 8.0),
        share: Some(count as f64 * mean_s / 2.0),
        ratio_to_peers: Some(1.5),
        times: vec![(64.0, 3)],
        ..Row::default()
    }
}

pub fn kvm() -> Report {
    let port = |port: u32, direction, mean_s| Row {
        port: Some(port),
        direction: Some(direction),
        device: Some("ide".into()),
        ..row("IDE 1", 400, mean_s)
    };
    Report {
        format: "trace.dat",
        clock: "local".into(),
        events: 120_345,
        lost_events: 12,
        losses: Losses { lost_events: 12, ..Losses::default() },
        duration_s: Some(2.0),
        tick_s: Some(1e-9),
        slice_s: Some(0.01),
        vcpu_time_s: Some(2.0),
        shares_of_vcpus: true,
        counts: [("kvm_exit".to_owned(), 5000), ("kvm_pio".to_owned(), 800)].into(),
        ports: vec![port(0x1f0, "read", 2e-5), port(0x1f7, "write", 4e-3)],
        mmio: vec![Row {
            address: Some(0xfee0_0300),
            direction: Some("write"),
            ..row("0xfee00300", 9, 1e-6)
        }],
        msrs: vec![Row { msr: Some(0x6e0), direction: Some("write"), ..row("0x6e0", 70, 1e-6) }],
        exits: vec![row("IO_INSTRUCTION", 800, 2e-3), row("HLT", 90, 1e-2)],
        syscalls: vec![row("ioctl", 900, 1e-3), row("pread64", 200, 4e-3)],
        threads: vec![ThreadTimes {
            thread: "4242".into(),
            name: "CPU 0/KVM".into(),
            vcpu: true,
            running_s: Some(1.5),
            guest_s: Some(0.9),
            kvm_s: Some(0.2),
            kernel_s: Some(0.1),
            user_s: Some(0.3),
            runnable_s: Some(0.05),
            blocked_s: Some(0.45),
            unknown_s: None,
        }],
        ..Report::default()
    }
}

pub fn xen() -> Report {
    Report {
        format: "xentrace",
        clock: "TSC".into(),
        cpu_hz: Some(2.5e9),
        events: 900,
        duration_s: Some(0.5),
        counts: [("vmexit".to_owned(), 300)].into(),
        exits: vec![Row { mean_cycles: Some(2500.0), ..row("IO_INSTRUCTION", 300, 1e-6) }],
        runstates: vec![Runstates {
            domain: 1,
            vcpu: Some(0),
            rows: vec![row("running", 20, 1e-2)],
            runnable: vec![row("woken", 19, 1e-5)],
        }],
        ..Report::default()
    }
}

pub fn versus() -> Versus {
    let side = |count: u64| Side {
        count,
        per_s: Some(count as f64 / 2.0),
        total_s: Some(count as f64 * 1e-3),
        median_s: Some(1e-3),
    };
    let test = |ratio: f64, p_value: f64| Test {
        ratio: Some(ratio),
        p_value,
        p_adjusted: (p_value * 2.0).min(1.0),
        basis: "slices",
    };
    Versus {
        a: vec!["before.dat".into()],
        b: vec!["after.dat".into()],
        per: Per::Second,
        tests: 2,
        rows: vec![VersusRow {
            table: "ports",
            name: "IDE 1".into(),
            port: Some(0x1f7),
            address: None,
            direction: Some("write"),
            a: side(400),
            b: side(800),
            counts: Some(test(2.0, 0.001)),
            times: Some(test(1.0, 0.75)),
        }],
    }
}
