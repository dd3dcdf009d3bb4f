//! Is it still the same machine? What a guest says of its vCPUs, memory, disks, network cards and end,
//! in the log in its RAM and on its console, and whether two boots say the same.

use std::collections::BTreeSet;
use vmeter_model::event::EventKind;
use vmeter_model::expression::compiled;
use vmeter_model::tune::{InventoryItem, Keep, Sameness};
use vmeter_model::{Event, RunRecord};

/// Two boots' memory may differ by so much: what a firmware sets aside for itself.
const MEMORY: f64 = 0.01;

/// What one boot shows; nothing where nothing shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Inventory {
    /// vCPUs that were brought up.
    vcpus: Option<String>,
    /// KiB of memory.
    memory_kib: Option<f64>,
    /// Disks with their sizes.
    disks: Option<BTreeSet<String>>,
    /// Addresses of network cards, and names of interfaces.
    network: Option<BTreeSet<String>>,
    /// Functions on PCI buses, by vendor and device.
    pci: Option<Vec<String>>,
    /// True if ACPI is interpreted.
    acpi: Option<bool>,
    /// True if devices can be plugged in.
    hotplug: Option<bool>,
    /// True if anything was printed on a console.
    console: Option<bool>,
    /// What ended it.
    end: Option<String>,
    /// The last line that was seen.
    last_line: Option<String>,
}

/// The first group of the last line that matches.
fn last(lines: &[&str], pattern: &'static str) -> Option<String> {
    let regex = compiled(pattern)?;
    let found = lines.iter().rev().find_map(|line| regex.captures(line))?;
    Some(found.get(1)?.as_str().to_owned())
}

/// All groups of all lines that match, joined by a space.
fn all(lines: &[&str], pattern: &'static str) -> Vec<String> {
    let Some(regex) = compiled(pattern) else { return Vec::new() };
    let found = lines.iter().filter_map(|line| regex.captures(line));
    let words = |found: regex::Captures<'_>| {
        let groups = found.iter().skip(1).flatten().map(|group| group.as_str().to_owned());
        groups.collect::<Vec<_>>().join(" ")
    };
    found.map(words).collect()
}

impl Inventory {
    /// Of a run and its events.
    pub fn of(record: &RunRecord, events: &[Event]) -> Self {
        let mut lines: Vec<&str> = Vec::new();
        let (mut console, mut last_line) = (None, None);
        for event in events {
            match &event.what {
                EventKind::KernelLine { text, .. } => lines.push(text),
                EventKind::ConsoleLine { text, .. } => {
                    lines.push(text);
                    console =
                        console.or(Some(true)).filter(|_| !text.trim().is_empty()).or(console);
                }
                _ => continue,
            }
            last_line = lines.last().map(|line| (*line).to_owned()).or(last_line);
        }
        // A log that begins with the kernel's version is whole enough to say what is not in it.
        let whole = lines.iter().any(|line| line.contains("Linux version"));
        let set = |found: Vec<String>| {
            let found: BTreeSet<String> = found.into_iter().collect();
            (whole || !found.is_empty()).then_some(found)
        };
        let has = |text: &str| whole.then(|| lines.iter().any(|line| line.contains(text)));
        let pci = all(&lines, r"pci \S+: \[([0-9a-f]{4}:[0-9a-f]{4})\]");
        let kib = last(&lines, r"Memory: \d+K/(\d+)K available").and_then(|kib| kib.parse().ok());
        Inventory {
            vcpus: last(&lines, r"Brought up \d+ nodes?, (\d+) CPUs?"),
            memory_kib: kib,
            disks: set(disks(&lines)),
            network: set(network(&lines)),
            pci: (whole || !pci.is_empty()).then_some(pci),
            acpi: has("ACPI: Interpreter enabled"),
            hotplug: has("ot Plug PCI Controller Driver"),
            console,
            end: record.end.as_ref().map(|end| end.cause.word().to_owned()),
            last_line,
        }
    }

    /// The last line that was seen.
    pub fn last_line(&self) -> Option<&str> {
        self.last_line.as_deref().map(str::trim).filter(|line| !line.is_empty())
    }
}

/// Names and sizes of disks, as their drivers print them.
fn disks(lines: &[&str]) -> Vec<String> {
    let mut found = all(lines, r"\[((?:sd|vd|xvd|nvme|mmcblk)\w+)\] (\d+) (?:\d+-byte )?logical");
    found.extend(all(lines, r"\b(pmem\d+): detected capacity change from 0 to (\d+)"));
    found.extend(all(lines, r"\b(sr\d+): scsi3-mmc drive"));
    found
}

/// Addresses of network cards and names of interfaces.
fn network(lines: &[&str]) -> Vec<String> {
    let mut found = all(lines, r"\b((?:[0-9a-f]{2}:){5}[0-9a-f]{2})\b");
    found.extend(all(lines, r"\b(?:eth|en[opsx])\w*: renamed from (\w+)"));
    found.extend(all(lines, r"\bvirtio_net (virtio\d+)"));
    found
}

/// Compares them: `given_up` is what the tuned machine's steps say that they take away.
pub(crate) fn compare(
    original: &Inventory,
    tuned: &Inventory,
    given_up: &[Keep],
) -> Vec<InventoryItem> {
    let listed = |set: &Option<BTreeSet<String>>| {
        let set = set.as_ref()?;
        let words: Vec<&str> = set.iter().map(String::as_str).collect();
        Some(if words.is_empty() { "none".to_owned() } else { words.join(", ") })
    };
    let said = |flag: Option<bool>| flag.map(|on| if on { "yes" } else { "no" }.to_owned());
    let kib = |inventory: &Inventory| inventory.memory_kib.map(|kib| format!("{kib:.0} KiB"));
    let pci = |inventory: &Inventory| {
        let all = inventory.pci.as_ref()?;
        Some(format!("{} PCI functions", all.len()))
    };
    let near = match (original.memory_kib, tuned.memory_kib) {
        (Some(a), Some(b)) => (a / b - 1.0).abs() <= MEMORY,
        _ => false,
    };
    let never: &[Keep] = &[];
    let chipset = [Keep::Chipset, Keep::Display, Keep::Network, Keep::Usb, Keep::Hotplug];
    let item = |what: &str, of: &dyn Fn(&Inventory) -> Option<String>, by: &[Keep]| {
        let (a, b) = (of(original), of(tuned));
        let sameness = match (&a, &b) {
            (Some(a), Some(b)) if a == b => Sameness::Same,
            (Some(_), Some(_)) if what == "memory" && near => Sameness::Same,
            (Some(_), Some(_)) if by.iter().any(|class| given_up.contains(class)) => {
                Sameness::GivenUp
            }
            (Some(_), Some(_)) => Sameness::Differs,
            _ => Sameness::Unchecked,
        };
        InventoryItem { what: what.to_owned(), original: a, tuned: b, sameness }
    };
    vec![
        item("vCPUs", &|i| i.vcpus.clone(), never),
        item("memory", &kib, never),
        item("disks", &|i| listed(&i.disks), never),
        item("network cards", &|i| listed(&i.network), never),
        item("end", &|i| i.end.clone(), never),
        item("ACPI", &|i| said(i.acpi), &[Keep::Acpi]),
        item("hotplug", &|i| said(i.hotplug), &[Keep::Hotplug]),
        item("console", &|i| said(i.console), &[Keep::Console, Keep::Log]),
        item("chipset", &pci, &chipset),
    ]
}

/// What differs that nobody gave up, in words.
pub(crate) fn difference(items: &[InventoryItem]) -> Option<String> {
    let found = items.iter().find(|item| item.sameness == Sameness::Differs)?;
    let (a, b) = (found.original.as_deref()?, found.tuned.as_deref()?);
    Some(format!(
        "the changed machine is not equivalent to the original: {} changed from {a} to {b}",
        found.what
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(lines: &[&str]) -> Inventory {
        let event = |text: &&str| Event {
            at: 0,
            error_ns: 0,
            source: String::new(),
            insns: None,
            what: EventKind::KernelLine { text: (*text).to_owned(), by_program: false },
        };
        let events: Vec<Event> = lines.iter().map(event).collect();
        Inventory::of(&RunRecord::default(), &events)
    }

    const WHOLE: [&str; 6] = [
        "Linux version 6.1.0",
        "Memory: 260864K/523764K available (14343K kernel code)",
        "smp: Brought up 1 node, 2 CPUs",
        "pci 0000:00:02.0: [8086:10d3] type 00 class 0x020000",
        "virtio_blk virtio1: [vda] 20480 512-byte logical blocks (10.5 MB/10.0 MiB)",
        "e1000 0000:00:03.0 eth0: (PCI:33MHz:32-bit) 52:54:00:12:34:56",
    ];

    #[test]
    fn what_is_missing_differs_and_what_nobody_says_is_not_checked() {
        let whole = inventory(&WHOLE);
        assert_eq!(difference(&compare(&whole, &whole, &[])), None);
        let with = |at: usize, line: &str| {
            let mut lines = WHOLE;
            lines[at] = line;
            difference(&compare(&whole, &inventory(&lines), &[])).unwrap_or_default()
        };
        assert!(with(2, "smp: Brought up 1 node, 1 CPU").contains("vCPUs changed from 2 to 1"));
        assert!(with(1, "Memory: 1K/261000K available").contains("memory"));
        assert_eq!(with(1, "Memory: 1K/523000K available"), "");
        assert!(with(4, "").contains("disks changed from vda 20480 to none"));
        assert!(with(5, "").contains("network cards changed"));
        assert!(with(3, "").contains("to 0 PCI functions"));
        let given = compare(&whole, &inventory(&[WHOLE[0], WHOLE[2]]), &[Keep::Chipset]);
        let of = |what: &str| given.iter().find(|item| item.what == what).expect(what).sameness;
        assert_eq!((of("chipset"), of("memory")), (Sameness::GivenUp, Sameness::Unchecked));
        let silent = inventory(&[]);
        let all = compare(&silent, &silent, &[]);
        assert!(all.iter().all(|item| item.sameness == Sameness::Unchecked), "{all:?}");
    }
}
