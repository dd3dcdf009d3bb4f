//! What a character costs on each console: a guest that prints known amounts.

use super::machine_builder::{describable, MachineBuilder};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use vmeter_appliance::ApplianceSpec;
use vmeter_model::findings::ConsoleCost;
use vmeter_model::MachineSpec;
use vmeter_stats::{estimate_signed, mean};

/// The finding that asks for it.
pub(crate) const FINDING: &str = "uart-cost";
/// Labels of the machines that print: where a program may not write to a port (as under KVM in
/// QEMU's interpreter), its init dies of that, and must not take the other consoles with it.
pub(crate) const LABELS: [&str; 2] = ["uart-cost: consoles", "uart-cost: debugcon"];
/// Characters printed: the second amount less the first takes out what a call costs.
const AMOUNTS: [u32; 2] = [2048, 51200];
/// Counts of exits by port, as in `kvm_pio:0x3f8`.
const PORT_COUNT: &str = "kvm_pio:";
/// What an amount is printed to.
struct Console {
    /// What the init calls it.
    name: &'static str,
    /// What the table does.
    shown: &'static str,
    /// Its I/O ports; none of one that is asked through memory.
    ports: Option<RangeInclusive<u32>>,
    /// Which of the machines prints to it.
    label: &'static str,
}

impl Console {
    const fn of(name: &'static str, shown: &'static str, ports: RangeInclusive<u32>) -> Self {
        Console { name, shown, ports: Some(ports), label: LABELS[0] }
    }

    const fn debug(name: &'static str, shown: &'static str, port: u32) -> Self {
        Console { label: LABELS[1], ..Console::of(name, shown, port..=port) }
    }
}

/// Both ways to write to a debug console have one of their own, so that their exits are told apart.
const CONSOLES: [Console; 5] = [
    Console::of("ttyS0", "ttyS0 (UART)", 0x3f8..=0x3ff),
    Console::of("ttyS1", "ttyS1 (UART, to null)", 0x2f8..=0x2ff),
    Console { ports: None, ..Console::of("hvc0", "hvc0 (virtio-console)", 0..=0) },
    Console::debug("outb-0xe9", "debugcon, an outb each", 0xe9),
    Console::debug("outsb-0xea", "debugcon, rep outsb", 0xea),
];

fn step(console: &str, amount: u32) -> String {
    format!("print {console} {amount}")
}

/// A machine with all consoles, which prints both amounts to each of its own.
pub(crate) fn machine(builder: &MachineBuilder<'_>, label: &str) -> Result<MachineSpec, String> {
    let mut spec = builder.base.clone();
    if builder.is_mock() {
        spec.append.push(format!("vmeter.print={}", label.replace(' ', "-")));
        return Ok(spec);
    }
    if builder.back_end() != "qemu" {
        return Err("the consoles are QEMU's".into());
    }
    let wanted = ApplianceSpec {
        modules_from: Some(builder.kernel()?.modules()),
        load: ["virtio_pci", "virtio_console"].map(str::to_owned).into(),
        ..ApplianceSpec::minimal()
    };
    builder.initramfs(&mut spec, &wanted)?;
    for amount in AMOUNTS {
        for console in CONSOLES.iter().filter(|console| console.label == label) {
            spec.append.push(format!("vmeter.print={}:{amount}", console.name));
        }
    }
    // A sink of its own for each: a chardev has one user.
    let devices = [
        ("s", "isa-serial,index=1,"),
        ("d", "isa-debugcon,iobase=0xe9,"),
        ("r", "isa-debugcon,iobase=0xea,"),
        ("v", "virtconsole,"),
    ];
    spec.vmm_arg.extend(["-device", "virtio-serial-pci"].map(str::to_owned));
    for (sink, device) in devices {
        let chardev = format!("null,id=vmeter-sink-{sink}");
        let device = format!("{device}chardev=vmeter-sink-{sink}");
        spec.vmm_arg.extend(["-chardev".to_owned(), chardev, "-device".to_owned(), device]);
    }
    describable(&spec, builder)?;
    Ok(spec)
}

/// What the boots of one block have of it.
#[derive(Clone, Copy)]
pub(crate) struct Printed<'a> {
    /// Activities of the machine that prints, by name, s.
    pub parts: &'a BTreeMap<String, f64>,
    /// Its counts.
    pub counts: &'a BTreeMap<String, f64>,
    /// Those of the machine that does not print, in the same block.
    pub silent: Option<&'a BTreeMap<String, f64>>,
}

impl Printed<'_> {
    fn prints(&self, console: &Console) -> bool {
        self.parts.contains_key(&format!("/init:{}", step(console.name, AMOUNTS[0])))
    }
}

/// The table.
pub(crate) fn costs(blocks: &[Printed<'_>]) -> Vec<ConsoleCost> {
    let [few, many] = AMOUNTS;
    let chars = f64::from(many - few);
    let cost = |console: &Console| {
        let of = |block: &Printed<'_>, amount| {
            block.parts.get(&format!("/init:{}", step(console.name, amount))).copied()
        };
        let one = |block: &Printed<'_>| Some((of(block, many)? - of(block, few)?) / chars);
        let own = || blocks.iter().filter(|block| block.prints(console));
        let samples_s: Vec<f64> = own().filter_map(one).collect();
        let exits: Vec<f64> = own().filter_map(|block| exits(console, block)).collect();
        (!samples_s.is_empty()).then(|| ConsoleCost {
            console: console.shown.to_owned(),
            per_char: estimate_signed(&samples_s),
            exits_per_char: (!exits.is_empty()).then(|| estimate_signed(&exits)),
            samples_s,
        })
    };
    CONSOLES.iter().filter_map(cost).collect()
}

/// Exits by its ports that a character takes, where KVM's trace counted ports: what the machine
/// that prints has more than the one that does not.
fn exits(console: &Console, block: &Printed<'_>) -> Option<f64> {
    let ports = console.ports.as_ref()?;
    let at_ports = |counts: &BTreeMap<String, f64>| {
        counts.keys().any(|name| name.starts_with(PORT_COUNT)).then_some(())?;
        let of = |port| counts.get(&format!("{PORT_COUNT}{port:#x}")).copied().unwrap_or(0.0);
        Some(ports.clone().map(of).sum::<f64>())
    };
    let chars: u32 = AMOUNTS.iter().sum();
    Some((at_ports(block.counts)? - at_ports(block.silent?)?) / f64::from(chars))
}

/// Mean cost of a character on the console that the kernel's log goes to, s.
pub(crate) fn of_log(costs: &[ConsoleCost]) -> Option<f64> {
    let first = CONSOLES.first().map(|console| console.shown)?;
    let cost = costs.iter().find(|cost| cost.console == first)?;
    Some(mean(&cost.samples_s))
}
