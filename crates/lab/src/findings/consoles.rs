//! What a character costs on each console: a guest that prints known amounts.

use super::kitchen::Kitchen;
use std::collections::BTreeMap;
use vmeter_appliance::ApplianceSpec;
use vmeter_model::findings::ConsoleCost;
use vmeter_model::MachineSpec;
use vmeter_stats::{estimate, mean};

/// The finding that asks for it.
pub(crate) const FINDING: &str = "uart-cost";
/// Label of the machine.
pub(crate) const LABEL: &str = "uart-cost: all consoles";
/// Characters printed: the second amount less the first takes out what a call costs.
const AMOUNTS: [u32; 2] = [2048, 51200];
/// I/O port of QEMU's debug console.
const PORT: &str = "0xe9";

/// Consoles: what the init calls it, and what the table does.
const CONSOLES: [(&str, &str); 5] = [
    ("ttyS0", "ttyS0 (UART)"),
    ("ttyS1", "ttyS1 (second UART)"),
    ("hvc0", "hvc0 (virtio-console)"),
    ("outb-0xe9", "debugcon, an outb each"),
    ("outsb-0xe9", "debugcon, rep outsb"),
];

fn step(console: &str, amount: u32) -> String {
    format!("print {console} {amount}")
}

/// The machine with all consoles, which prints both amounts to each.
pub(crate) fn machine(kitchen: &Kitchen<'_>) -> Result<MachineSpec, String> {
    let mut spec = kitchen.base.clone();
    if kitchen.is_mock() {
        spec.append.push("vmeter.print=all".into());
        return Ok(spec);
    }
    if kitchen.back_end() != "qemu" {
        return Err("the consoles are QEMU's".into());
    }
    let wanted = ApplianceSpec {
        modules_from: Some(kitchen.kernel()?.modules()),
        load: ["virtio_pci", "virtio_console"].map(str::to_owned).into(),
        ..ApplianceSpec::minimal()
    };
    kitchen.initramfs(&mut spec, &wanted)?;
    for amount in AMOUNTS {
        for (console, _) in CONSOLES {
            spec.append.push(format!("vmeter.print={console}:{amount}"));
        }
    }
    // A sink of its own for each: a chardev has one user.
    let devices = [
        ("s", "isa-serial,index=1,".to_owned()),
        ("d", format!("isa-debugcon,iobase={PORT},")),
        ("v", "virtconsole,".to_owned()),
    ];
    spec.vmm_arg.extend(["-device", "virtio-serial-pci"].map(str::to_owned));
    for (sink, device) in devices {
        let chardev = format!("null,id=vmeter-sink-{sink}");
        let device = format!("{device}chardev=vmeter-sink-{sink}");
        spec.vmm_arg.extend(["-chardev".to_owned(), chardev, "-device".to_owned(), device]);
    }
    super::describable(&spec, kitchen)?;
    Ok(spec)
}

/// The table, from the activities of each block: name to s.
pub(crate) fn costs<'a>(
    blocks: impl Iterator<Item = &'a BTreeMap<String, f64>> + Clone,
) -> Vec<ConsoleCost> {
    let [few, many] = AMOUNTS;
    let chars = f64::from(many - few);
    let cost = |(console, shown): &(&str, &str)| {
        let of = |steps: &BTreeMap<String, f64>, amount| {
            steps.get(&format!("/init:{}", step(console, amount))).copied()
        };
        let one =
            |steps: &BTreeMap<String, f64>| Some((of(steps, many)? - of(steps, few)?) / chars);
        let samples_s: Vec<f64> = blocks.clone().filter_map(one).collect();
        let per_char = estimate(&samples_s);
        (!samples_s.is_empty()).then(|| ConsoleCost {
            console: (*shown).to_owned(),
            per_char,
            samples_s,
        })
    };
    CONSOLES.iter().filter_map(cost).collect()
}

/// Mean cost of a character on the console that the kernel's log goes to, s.
pub(crate) fn of_log(costs: &[ConsoleCost]) -> Option<f64> {
    let first = CONSOLES.first().map(|(_, shown)| *shown)?;
    let cost = costs.iter().find(|cost| cost.console == first)?;
    Some(mean(&cost.samples_s))
}
