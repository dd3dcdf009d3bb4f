//! A small result of `vmeter explain`: two traces, two findings.

use super::envelope;
use vmeter_explain::kind::{Kind, Modifier};
use vmeter_explain::result::*;

fn event(event: &str, timestamp: u64) -> EventRef {
    EventRef {
        file: "traces/host.dat".into(),
        timestamp,
        age_s: Some(1.234),
        cpu: Some(1),
        tid: Some(4242),
        event: event.into(),
    }
}

fn file(name: &str, method: &str) -> ExplainedFile {
    let aligned = method != "reference";
    ExplainedFile {
        file: format!("traces/{name}"),
        format: "trace.dat".into(),
        clock: "x86-tsc".into(),
        events: 120_345,
        lost_events: if aligned { 12 } else { 0 },
        alignment: Alignment {
            method: method.into(),
            offset_s: if aligned { 1.25 } else { 0.0 },
            drift_ppm: if aligned { 0.5 } else { 0.0 },
            error_s: aligned.then_some(2e-6),
            pairs: if aligned { 64 } else { 0 },
        },
    }
}

pub fn result() -> ExplainResult {
    let link = |claim: &str, evidence| Link { claim: claim.into(), evidence };
    let step = |who: &str, doing: &str, time: f64| Step {
        who: who.into(),
        doing: doing.into(),
        time_s: Some(time),
        share: time,
        lock: None,
    };
    let part =
        |name: &str, share: f64| VcpuPart { name: name.into(), time_s: Some(share * 2.0), share };
    ExplainResult {
        envelope: envelope("explain"),
        files: vec![file("host.dat", "reference"), file("guest.dat", "same TSC")],
        duration_s: Some(2.0),
        followed: Vec::new(),
        trees: Vec::new(),
        waits: Vec::new(),
        vcpus: vec![VcpuSplit {
            vcpu: "CPU 0/KVM (4242)".into(),
            total_s: Some(2.0),
            parts: vec![part("guest", 0.5), part("user space", 0.375), part("KVM", 0.125)],
        }],
        findings: vec![
            Finding {
                kind: Kind::BlockIo,
                severity: Severity::High,
                subject: "port 0x1f7 write (IDE 1)".into(),
                summary: "each write to port 0x1f7 takes 4 ms in the device model".into(),
                saving_s: Some(0.8),
                saving_ci95_s: Some([0.75, 0.85]),
                saving_share: 0.4,
                way: vec![
                    step("port 0x1f7 write (IDE 1)", "waits in futex", 0.8),
                    step("io-0 (4243)", "asleep in pread64", 0.7),
                ],
                chain: vec![
                    link(
                        "200 writes take 4 ms each",
                        Evidence {
                            count: Some(200),
                            total_s: Some(0.8),
                            figures: [("median_s".to_owned(), 0.004)].into(),
                            events: vec![event("kvm:kvm_pio", 123_456_789)],
                            lost_events: Some(3),
                        },
                    ),
                    link("the VMM sleeps in pread64", Evidence::default()),
                ],
                suggestion: "give the disk a thread of its own".into(),
                confirm: "vmeter bench --vs iothread".into(),
                ..Finding::default()
            },
            Finding {
                kind: Kind::Unknown,
                modifier: Some(Modifier::Stall),
                severity: Severity::Low,
                subject: "HLT".into(),
                summary: "one exit takes 40 ms".into(),
                saving_s: None,
                saving_ci95_s: None,
                saving_share: 0.02,
                chain: vec![link(
                    "1 exit of 300",
                    Evidence { count: Some(1), ..Evidence::default() },
                )],
                suggestion: "look at it".into(),
                confirm: "vmeter trace stat host.dat".into(),
                ..Finding::default()
            },
        ],
        warnings: vec!["traces/guest.dat: 12 events lost".into()],
    }
}
