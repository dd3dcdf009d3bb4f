//! A small, deterministic result of every command, made by hand, with the shape of real ones.

pub mod boot;
pub mod dirty;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod irq;
pub mod memory;
pub mod migrate;
pub mod range;
pub mod runs;
pub mod sweep;
pub mod trace;
pub mod tune;

use vmeter_dirty::report::DirtyReport;
use vmeter_explain::report::ExplainReport;
use vmeter_host_tracing::stat::report::{NamedTrace, TraceStatReport};
use vmeter_index::{RunsExport, RunsReport};
use vmeter_irq::report::IrqReport;
use vmeter_lab::bench::report::BenchReport;
use vmeter_lab::boot::report::BootReport;
use vmeter_lab::diff::report::DiffReport;
use vmeter_lab::doctor::DoctorReport;
use vmeter_lab::findings::report::FindingsReport;
use vmeter_lab::memory::report::MemoryReport;
use vmeter_lab::range::report::RangeReport;
use vmeter_lab::sweep::report::SweepReport;
use vmeter_lab::tune::report::TuneReport;
use vmeter_migrate::MigrateReport;
use vmeter_model::result::Envelope;
use vmeter_model::Estimate;
use vmeter_render::Report;

/// Every report with its name.
pub fn each(draw: &mut dyn FnMut(&str, &dyn Report)) {
    draw("boot", &BootReport::new(&boot::boot(2, true)));
    draw("bench", &BenchReport::new(&boot::bench()));
    draw("sweep", &SweepReport::new(&sweep::sweep()));
    draw("diff", &DiffReport::new(&sweep::diff()));
    draw("range", &RangeReport::new(&range::result()));
    draw("findings", &FindingsReport::new(&findings::result()));
    draw("tune", &TuneReport::new(&tune::result()));
    draw("memory", &MemoryReport::new(&memory::result()));
    draw("dirty", &DirtyReport::new(&dirty::result()));
    draw("irq", &IrqReport::new(&irq::result()));
    draw("migrate", &MigrateReport::new(&migrate::result()));
    draw("explain", &ExplainReport::new(&explain::result()));
    draw("runs", &RunsReport::new(&runs::list()));
    draw("runs_export", &RunsExport { envelope: &envelope("runs export"), source: &runs::Two });
    draw("doctor", &DoctorReport { result: &doctor::result(), verbose: true });
    let (kvm, xen, versus) = (trace::kvm(), trace::xen(), trace::versus());
    let warnings = ["before.dat: 12 events lost".to_owned()];
    let before = NamedTrace { file: "before.dat", report: &kvm };
    let after = NamedTrace { file: "after.dat", report: &xen };
    let mut stat = |name: &str, traces: Vec<NamedTrace<'_>>, versus| {
        let envelope = &envelope("trace stat");
        draw(name, &TraceStatReport { envelope, traces, versus, warnings: &warnings, top: 10 });
    };
    stat("trace_stat", vec![before], None);
    stat("trace_stat_two", vec![before, after], None);
    stat("trace_stat_versus", vec![before, after], Some(&versus));
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn envelope(command: &str) -> Envelope {
    let host = [
        ("cpu_model", serde_json::json!("AMD EPYC 7763")),
        ("cpus", serde_json::json!(2)),
        ("memory_bytes", serde_json::json!(24u64 << 30)),
        ("kernel", serde_json::json!("6.1.0-56-cloud-amd64")),
    ];
    Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: command.into(),
        argv: words(&format!("vmeter {command} --runs 10")),
        started_at: "2026-11-20T12:00:00Z".into(),
        host: host.map(|(name, value)| (name.to_owned(), value)).into(),
        provenance: [("vmeter".to_owned(), "0.1.0".to_owned())].into(),
    }
}

/// Summary with a normal interval, of these fixtures alone.
fn estimate(samples: &[f64]) -> Estimate {
    let n = samples.len();
    let mean = samples.iter().sum::<f64>() / n as f64;
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    let sd = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
    let half = 2.262 * sd / (n as f64).sqrt();
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Estimate {
        mean,
        median: sorted[n / 2],
        sd,
        ci95: [mean - half, mean + half],
        min: sorted[0],
        max: sorted[n - 1],
        n,
    }
}
