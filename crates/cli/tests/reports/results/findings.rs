//! A small result of `vmeter findings`: one of each verdict.

use super::{envelope, estimate};
use vmeter_model::findings::*;
use vmeter_model::run::SessionMachine;
use vmeter_model::FindingVerdict;

fn contrast(name: &str, saved: f64, p_value: f64) -> Contrast {
    let with = [4.0, 4.25, 3.75];
    let without = with.map(|s| s - saved);
    let moved = Moved {
        name: "bios:overhead".into(),
        phase: "bios:overhead".into(),
        saving: estimate(&[saved * 0.9, saved * 0.95, saved]),
        p_value,
    };
    let found = p_value < 0.01;
    Contrast {
        name: name.into(),
        with: "fw-cfg-dma: with".into(),
        without: Some("baseline".into()),
        baseline: estimate(&with),
        changed: estimate(&without),
        saving: estimate(&[saved, saved * 1.1, saved * 0.9]),
        cpu_saving: estimate(&[saved, saved * 0.98]),
        found: estimate(&[saved * 0.9, saved * 0.95, saved]),
        found_in: found.then(|| "bios:overhead".into()),
        moved: if found { vec![moved] } else { Vec::new() },
        p_value,
        detectable_s: Some(0.125),
        detectable_in: Some("bios:overhead".into()),
        detectable_whole_s: Some(0.5),
        unit: (!name.is_empty()).then(|| ("present device".to_owned(), estimate(&[0.001, 0.002]))),
        exits_per_unit: (!name.is_empty()).then(|| estimate(&[12.0, 14.0])),
        exact: found.then(|| ExactContrast {
            saving_s: 0.5,
            baseline_s: 1.5,
            phase: "bios:overhead".into(),
            phase_saving_s: 0.5,
        }),
        samples_s: std::iter::zip(with, without).collect(),
        saves: found,
        costs: false,
    }
}

fn row(id: &str, contrasts: Vec<Contrast>, verdict: FindingVerdict, reason: &str) -> FindingRow {
    FindingRow {
        id: id.into(),
        title: "kernel loaded by port I/O".into(),
        what: "the firmware fetches the kernel byte by byte".into(),
        published: "700 → ~0 ms".into(),
        stand_in: if contrasts.len() > 1 { "qboot".into() } else { String::new() },
        expected: vec!["bios:overhead".into()],
        price: Price::VmmOption,
        remedy: "-global fw_cfg.dma_enabled=on".into(),
        contrasts,
        verdict,
        reason: reason.into(),
    }
}

pub fn result() -> FindingsResult {
    use FindingVerdict::{Confirmed, Inapplicable, NotReproduced};
    let probe = vec![contrast("devices", 0.01, 0.5), contrast("root ports", 0.02, 0.25)];
    FindingsResult {
        envelope: envelope("findings"),
        machine: SessionMachine { label: "baseline".into(), ..SessionMachine::default() },
        own: false,
        baseline: Some(estimate(&[4.0, 4.25, 3.75])),
        rows: vec![
            row("fw-cfg-dma", vec![contrast("", 1.5, 0.0005)], Confirmed, "1.4s less"),
            row("pci-probe", probe, NotReproduced, "no saving was found"),
            row("minimal-kernel", Vec::new(), Inapplicable, "the cache has no kernel of this kind"),
        ],
        consoles: vec![ConsoleCost {
            console: "ttyS0 (UART)".into(),
            per_char: estimate(&[4e-6, 5e-6]),
            exits_per_char: Some(estimate(&[1.0625, 1.0625])),
            samples_s: vec![4e-6, 5e-6],
        }],
        console_share: Some(ConsoleShare {
            bytes: estimate(&[80_000.0, 80_100.0]),
            share: estimate(&[0.125, 0.13]),
        }),
        boots: 12,
        took_s: 61.5,
        warnings: vec!["a run is missing".into()],
        hints: vec!["vmeter findings --runs 20".into()],
        saved_in: "/runs/findings".into(),
    }
}
