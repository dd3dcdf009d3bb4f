//! Prints the statistics of a trace: `stat [--all] [--counts] [--cpu-hz HZ] FILE`.

use std::time::Instant;
use vmeter_trace::stat::{Row, Stats};
use vmeter_trace::{open, Error, Input};

fn main() -> Result<(), Error> {
    let (mut all, mut counts, mut hz, mut files) = (false, false, None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => all = true,
            "--counts" => counts = true,
            "--cpu-hz" => hz = arguments.next().and_then(|v| v.parse().ok()),
            _ => files.push(argument),
        }
    }
    for file in files {
        let begin = Instant::now();
        let mut reader = open(Input::open(file.as_ref())?)?;
        let header = begin.elapsed();
        let mut stats = Stats::new(reader.info());
        while let Some(event) = reader.next_event() {
            stats.add(&event);
        }
        let report = stats.finish(reader.as_ref(), hz);
        let took = begin.elapsed();
        if all {
            println!("{report:#?}");
        } else if counts {
            for (name, count) in &report.counts {
                println!("{count} {name}");
            }
        } else {
            print_report(&report);
        }
        let rate = report.events as f64 / took.as_secs_f64() / 1e6;
        eprintln!(
            "{} events, {} lost, {took:.2?} ({header:.2?} of it the header): {rate:.2} M events/s",
            report.events, report.lost_events
        );
        eprintln!("{:?}", report.losses);
    }
    Ok(())
}

fn print_report(report: &vmeter_trace::stat::Report) {
    let tables = [
        ("ports", &report.ports),
        ("mmio", &report.mmio),
        ("msrs", &report.msrs),
        ("exits", &report.exits),
        ("userspace exits", &report.userspace_exits),
        ("hypercalls", &report.hypercalls),
        ("syscalls", &report.syscalls),
        ("ioctls", &report.ioctls),
        ("irqs", &report.irqs),
        ("vectors", &report.vectors),
        ("ipis", &report.ipis),
        ("ipi sends", &report.ipi_sends),
        ("works", &report.works),
    ];
    for (title, rows) in tables {
        print_rows(title, rows);
    }
    for r in &report.runstates {
        print_rows(&format!("runstates of d{} {:?}", r.domain, r.vcpu), &r.rows);
        print_rows("  runnable by", &r.runnable);
    }
    for t in report.threads.iter().take(20) {
        println!("{t:?}");
    }
}

fn print_rows(title: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    println!("== {title}");
    for r in rows {
        let us = |s: Option<f64>| s.map_or("-".to_string(), |s| format!("{:.2}", s * 1e6));
        println!(
            "{:>6} {:24} {:6} {:>9} total {:>14} mean {:>11} p50 {:>11} p99 {:>11} us {:>12} cyc share {:.4} x{:.1}",
            r.port.map_or(String::new(), |p| format!("{p:x}")),
            r.name,
            r.direction.unwrap_or(""),
            r.count,
            us(r.total_s),
            us(r.mean_s),
            us(r.median_s),
            us(r.p99_s),
            r.mean_cycles.map_or(String::new(), |c| format!("{c:.0}")),
            r.share.unwrap_or(0.0),
            r.ratio_to_peers.unwrap_or(0.0),
        );
    }
}
