//! A small result of `vmeter tune`: a step that is kept, one that is not, one that breaks the guest.

use super::{envelope, estimate, words};
use vmeter_model::run::SessionMachine;
use vmeter_model::tune::*;

fn step(id: &str, predicted: [f64; 2], saved: Option<f64>, kept: bool, reason: &str) -> TuneStep {
    TuneStep {
        id: id.into(),
        title: "self-tests of cryptography".into(),
        change: "cryptomgr.notests".into(),
        predicted: Some(vmeter_model::Estimate {
            ci95: predicted,
            n: 1,
            ..estimate(&[(predicted[0] + predicted[1]) / 2.0])
        }),
        saving: saved.map(|s| estimate(&[s, s * 1.1, s * 0.9])),
        p_value: saved.map(|_| 0.0005),
        kept,
        gives_up: "the self-tests of ciphers, which FIPS asks for".into(),
        reason: reason.into(),
        booted: true,
    }
}

fn item(what: &str, original: &str, tuned: Option<&str>, sameness: Sameness) -> InventoryItem {
    let tuned = tuned.map(str::to_owned);
    InventoryItem { what: what.into(), original: Some(original.into()), tuned, sameness }
}

fn phase(name: &str, before: f64, after: f64) -> PhaseChange {
    let of = |s: f64| estimate(&[s, s * 1.05, s * 0.95]);
    PhaseChange { name: name.into(), before: of(before), after: of(after) }
}

pub fn result() -> TuneResult {
    let pairs = [(4.0, 2.0), (4.25, 2.125), (3.75, 1.875), (4.5, 2.0), (4.0, 2.25), (4.25, 2.0)];
    let side = |of: fn(&(f64, f64)) -> f64| estimate(&pairs.iter().map(of).collect::<Vec<_>>());
    let ratio = side(|(before, after)| before / after);
    let panicked = "the guest panicked: Kernel panic - not syncing: no root";
    let never = TuneStep {
        predicted: None,
        saving: None,
        p_value: None,
        booted: false,
        ..step("acpi-off", [0.0, 0.0], None, false, "a machine without ACPI is a different machine")
    };
    TuneResult {
        envelope: envelope("tune"),
        machine: SessionMachine { label: "original".into(), ..SessionMachine::default() },
        steps: vec![
            step("crypto-tests", [0.4, 0.8], Some(0.5), true, "it saves 500ms, beyond noise"),
            step(
                "hpet-device",
                [0.01, 0.06],
                Some(0.001),
                false,
                "it saves -2ms to 4ms: not worth it",
            ),
            step("usb-core", [0.02, 0.05], None, false, panicked),
            never,
        ],
        inventory: vec![
            item("vCPUs", "2", Some("2"), Sameness::Same),
            item("memory", "523764 KiB", Some("523700 KiB"), Sameness::Same),
            item("chipset", "6 PCI functions", Some("3 PCI functions"), Sameness::GivenUp),
            item("console", "yes", None, Sameness::Unchecked),
        ],
        before: Some(side(|pair| pair.0)),
        after: Some(side(|pair| pair.1)),
        ratio: Some(ratio),
        cpu_ratio: Some(ratio),
        p_value: Some(0.03125),
        samples_s: pairs.to_vec(),
        phases: vec![
            phase("bios:overhead", 0.2, 0.1),
            phase("kernel:initcalls-before-userspace", 2.0, 1.0),
        ],
        command: words("qemu-system-x86_64 -kernel vmlinuz -append cryptomgr.notests"),
        recommended: true,
        ended: "no remaining candidate can save more than 1.0 %".into(),
        predictions: (1, 2),
        boots: 120,
        took_s: 301.5,
        budget_s: 900.0,
        worth: 0.01,
        warnings: vec!["a run is missing".into()],
        hints: vec!["qemu-system-x86_64 -kernel vmlinuz -append cryptomgr.notests".into()],
        saved_in: "/runs/tune".into(),
    }
}
