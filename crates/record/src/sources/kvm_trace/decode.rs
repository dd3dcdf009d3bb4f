//! From KVM's events to counts and moments.

mod signal;

use super::place::{Between, Place, Stamp, ENTRY_64, KERNEL_LOAD};
use super::{ERROR_NS, NAME};
use crate::clock::Conversion;
use crate::recorder::SourceError;
use crate::sources::qemu_trace;
use signal::{GuestSignal, POST};
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_machine::backend;
use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord};
use vmeter_trace::event::Body;
use vmeter_trace::ops::{Access as Asked, Decoder, NameId, Op};
use vmeter_trace::{open, EventReader, Input};

/// Ports of QEMU's fw_cfg (docs/specs/fw_cfg.rst).
const FW_CFG: std::ops::RangeInclusive<u32> = 0x510..=0x51b;
/// Ports of PCI configuration mechanism 1: address, then data.
const PCI_ADDRESS: u32 = 0xcf8;
const PCI_DATA: std::ops::RangeInclusive<u32> = 0xcfc..=0xcff;

/// From entering the guest to the exit by which that is known: nothing was executed.
const FIRST_EXIT_ERROR_NS: Ns = 50_000;
/// PCI accesses kept one by one, and exits whose TSC offset is.
const MAX_ACCESSES: usize = 1 << 20;
const MAX_EXITS: usize = 1 << 20;
/// Ports with a count of their own.
const MAX_PORTS: usize = 1 << 12;

/// include/uapi/asm-generic/errno-base.h
const EINTR: i32 = 4;

/// A PCI configuration access.
#[derive(Debug, Clone, Copy)]
struct Access {
    at: Stamp,
    write: bool,
    address: u32,
    register: u32,
}

/// The first that was seen of a vCPU at work.
#[derive(Debug, Clone, Copy)]
struct First {
    at: Stamp,
    by: By,
}

/// What a vCPU was seen at work by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The entry into the guest itself.
    Entry,
    /// The first exit: an instruction fetch that nothing was mapped for yet.
    Exit,
    /// Something that the guest did, some time after it began.
    Consequence,
    /// What the VMM heard of it, where nothing else was seen: a KVM that interprets its guest
    /// has no exits.
    Answer,
}

/// All that is taken from a trace.
#[derive(Debug, Default)]
pub(super) struct Seen {
    clock: String,
    /// Exits by reason.
    exits_by: BTreeMap<NameId, u64>,
    reasons: BTreeMap<String, u64>,
    userspace_by: BTreeMap<NameId, u64>,
    userspace_reasons: BTreeMap<String, u64>,
    ports: BTreeMap<u32, u64>,
    mmio: u64,
    /// Accesses to either port of PCI configuration mechanism 1.
    pci_exits: u64,
    /// Those to the data port while it was enabled, whether a device answered or not.
    pci_accesses: u64,
    pci_address: u32,
    pci: Vec<Access>,
    /// The first vCPU's TSC offset, as last written.
    tsc_offset: Option<i64>,
    /// What it was at each exit of that vCPU.
    offsets_in_force: Vec<i64>,
    lost: u64,
    first: Option<First>,
    /// The VMM got its first answer from KVM_RUN, and when it had last made a vCPU before.
    answered: Option<(Stamp, Stamp)>,
    made: Stamp,
    said: GuestSignal,
    place: Place,
    last: Stamp,
    /// The last that was not a signal's doing: at its end a VMM sends signals to vCPUs that
    /// have long been halted.
    acted: Stamp,
}

/// Reads a trace to its end.
pub(super) fn read(path: &Path) -> Result<Seen, SourceError> {
    let failed = |error: vmeter_trace::Error| SourceError::Other(format!("{NAME}: {error}"));
    let mut reader = open(Input::open(path).map_err(failed)?).map_err(failed)?;
    let seen = collect(reader.as_mut());
    reader.losses().check(&path.display().to_string()).map_err(failed)?;
    Ok(seen)
}

fn collect(reader: &mut dyn EventReader) -> Seen {
    let mut seen = Seen { clock: reader.info().clock.name.clone(), ..Seen::default() };
    let mut decoder = Decoder::default();
    while let Some(event) = reader.next_event() {
        let op = decoder.decode(&event);
        seen.take(&event, op);
    }
    let named = |counts: &BTreeMap<NameId, u64>| {
        counts.iter().map(|(&id, &n)| (decoder.names().name(id).to_owned(), n)).collect()
    };
    seen.reasons = named(&seen.exits_by);
    seen.userspace_reasons = named(&seen.userspace_by);
    let losses = reader.losses();
    seen.lost = losses.lost_events.saturating_add(losses.uncounted_gaps);
    seen
}

/// What KVM calls a triple fault: to the VMM (include/trace/events/kvm.h), on Intel and on
/// AMD (arch/x86/include/uapi/asm/{vmx,svm}.h).
const TRIPLE_FAULTS: [&str; 3] = ["SHUTDOWN", "KVM_EXIT_SHUTDOWN", "TRIPLE_FAULT"];

impl Seen {
    /// True if it would have seen them.
    pub(super) fn has_exits(&self) -> bool {
        self.lost == 0 && !(self.userspace_reasons.is_empty() && self.reasons.is_empty())
    }

    /// Exits by which a vCPU gave up.
    pub(super) fn triple_faults(&self) -> u64 {
        let all = self.userspace_reasons.iter().chain(&self.reasons);
        let of_them =
            all.filter(|(reason, _)| TRIPLE_FAULTS.iter().any(|t| reason.eq_ignore_ascii_case(t)));
        // One fault is an exit to KVM and another to the VMM.
        of_them.map(|(_, n)| *n).max().unwrap_or(0)
    }

    fn take(&mut self, event: &vmeter_trace::Event<'_>, op: Op) {
        let number = |name: &str| match event.body {
            Body::Record(record) => event.kind.int(name).get(record),
            _ => None,
        };
        match op {
            Op::VmExit { reason } => {
                *self.exits_by.entry(reason).or_default() += 1;
                let rip = number("guest_rip");
                self.place.exit(event.tid, event.ts, rip.unwrap_or(0));
                if self.place.thread == Some(event.tid) && self.offsets_in_force.len() < MAX_EXITS {
                    self.offsets_in_force.extend(self.tsc_offset);
                }
                self.first.get_or_insert(First { at: event.ts, by: By::Exit });
            }
            Op::VmEntry => {
                self.first.get_or_insert(First { at: event.ts, by: By::Entry });
            }
            // Before the guest runs, a VMM may call KVM_RUN to settle a vCPU's state:
            // that ends without a port or an address.
            Op::UserspaceExit { reason } => {
                *self.userspace_by.entry(reason).or_default() += 1;
                self.answered.get_or_insert((event.ts, self.made));
            }
            Op::Access(Asked::Port { port, write }) => {
                let value = number("val").unwrap_or(0) as u32;
                self.pio(event.ts, port, write, value);
                if write {
                    self.said.put(event.ts, port, value);
                }
                self.first.get_or_insert(First { at: event.ts, by: By::Consequence });
            }
            // KVM says of a read that it has to ask for it, and again what came of it.
            Op::Access(Asked::Mmio { .. }) if number("type") == Some(0) => {}
            Op::Access(Asked::Mmio { address, write }) => {
                self.mmio += 1;
                if write {
                    self.said.wrote(event.ts, address, number("len"), number("val"));
                }
            }
            _ if event.kind.name == "kvm_write_tsc_offset" => {
                // KVM writes it as it makes a vCPU.
                self.made = event.ts;
                if number("vcpu_id") == Some(0) {
                    self.tsc_offset = number("next_tsc_offset").map(|offset| offset as i64);
                }
            }
            _ => {}
        }
        self.last = self.last.max(event.ts);
        if !self.by_signal(op, number("errno")) {
            self.acted = self.acted.max(event.ts);
        }
    }

    /// True if KVM_RUN ended for a signal, which says nothing of the guest where its exits are
    /// seen. Where they are not, it is all that shows of one that computes.
    fn by_signal(&self, op: Op, errno: Option<u64>) -> bool {
        let interrupted = errno.is_some_and(|errno| errno as i32 == -EINTR);
        interrupted && matches!(op, Op::UserspaceExit { .. }) && !self.exits_by.is_empty()
    }

    fn pio(&mut self, at: Stamp, port: u32, write: bool, value: u32) {
        if self.ports.len() < MAX_PORTS || self.ports.contains_key(&port) {
            *self.ports.entry(port).or_default() += 1;
        }
        if FW_CFG.contains(&port) {
            self.place.firmware_loads();
        } else if port == PCI_ADDRESS {
            self.pci_exits += 1;
            if write {
                self.pci_address = value;
            }
        } else if PCI_DATA.contains(&port) {
            self.pci_exits += 1;
            // Bit 31 enables the data port.
            let enabled = self.pci_address >> 31 == 1;
            self.pci_accesses += u64::from(enabled);
            if enabled && self.pci.len() < MAX_ACCESSES {
                let register = (self.pci_address & 0xfc) | (port & 3);
                self.pci.push(Access { at, write, address: self.pci_address, register });
            }
        }
    }

    /// What KVM added to the host's TSC in the first vCPU, and how far it was from
    /// that at its exits, cycles: the median, and what 98 of 100 are within.
    ///
    /// On a host with a stable TSC it is written before the guest runs and never
    /// again. On another KVM sets the guest's TSC back by what passed while the vCPU
    /// was away, and forward again before it enters: what was in force at an exit is
    /// what the guest had.
    pub fn tsc_offset(&self) -> Option<(i64, u64)> {
        let mut offsets = self.offsets_in_force.clone();
        offsets.sort_unstable();
        let Some(&median) = offsets.get(offsets.len() / 2) else {
            return Some((self.tsc_offset?, 0));
        };
        let mut distances: Vec<u64> = offsets.iter().map(|o| o.abs_diff(median)).collect();
        distances.sort_unstable();
        let within = distances.get(distances.len() * 98 / 100).copied();
        Some((median, within.unwrap_or(0)))
    }
}

/// The events of a trace, and of KVM's counters.
pub(super) fn events(
    seen: &Seen,
    stats: &BTreeMap<String, u64>,
    run: &RunRecord,
) -> Result<Vec<Event>, SourceError> {
    let clock = Clock::of(&seen.clock, run)?;
    let mut events = Vec::new();
    clock.moments(seen, run, &mut events);
    let traced = run.sources.iter().any(|s| s.name == qemu_trace::NAME);
    if !traced {
        // QEMU's own trace names the device; both would count each access twice.
        events.extend(seen.pci.iter().map(|access| clock.event(access.at, 0, access.what())));
    }
    for (name, value) in counts(seen, stats) {
        events.push(clock.event(seen.last, 0, EventKind::Count { name, value }));
    }
    Ok(events)
}

/// When a guest that had run before went on, on the run's clock: by its first exit, if that is seen.
pub(super) fn went_on(seen: &Seen, run: &RunRecord) -> Option<Ns> {
    let first = seen.first.filter(|_| seen.lost == 0 && seen.place.was_restored())?;
    Some(Clock::of(&seen.clock, run).ok()?.at(first.at))
}

/// When the guest told its VMM that it has booted, on the run's clock.
pub(super) fn booted(seen: &Seen, run: &RunRecord) -> Option<Ns> {
    let clock = Clock::of(&seen.clock, run).ok()?;
    Some(clock.at(seen.said.booted()?))
}

/// Final values. What the trace has is counted there; KVM's own counters say the rest.
fn counts(seen: &Seen, stats: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let sum = |by: &BTreeMap<String, u64>| by.values().sum::<u64>();
    let by_reason = |by: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
        by.iter().map(|(reason, n)| (format!("exits:{reason}"), *n)).collect()
    };
    counts.extend(stats.iter().map(|(name, value)| (name.clone(), *value)));
    if seen.reasons.is_empty() {
        // A KVM without kvm_exit: those that the VMM had to handle are all that shows.
        counts.extend(by_reason(&seen.userspace_reasons));
        counts.entry("exits".into()).or_insert(sum(&seen.userspace_reasons));
    } else {
        counts.extend(by_reason(&seen.reasons));
        counts.insert("exits".into(), sum(&seen.reasons));
    }
    counts.insert("userspace_exits".into(), sum(&seen.userspace_reasons));
    counts.insert("mmio".into(), seen.mmio);
    counts.insert("pci_config_exits".into(), seen.pci_exits);
    counts.insert("pci_config_accesses".into(), seen.pci_accesses);
    counts.extend(seen.ports.iter().map(|(port, n)| (format!("kvm_pio:{port:#x}"), *n)));
    counts.insert("kvm_trace_lost".into(), seen.lost);
    counts.retain(|name, value| *value > 0 || name == "exits");
    counts
}

impl Access {
    /// Bus, device and function are in the address (PCI Local Bus 3.0, 3.2.2.3.2).
    fn what(&self) -> EventKind {
        let (bus, device, function) =
            (self.address >> 16 & 0xff, self.address >> 11 & 0x1f, self.address >> 8 & 7);
        EventKind::PciConfig {
            write: self.write,
            device: format!("{bus:02x}:{device:02x}.{function}"),
            register: self.register,
        }
    }
}

/// The trace's clock on the run's.
struct Clock {
    exec_ns: Ns,
    total_ns: Ns,
    tsc: Option<Conversion>,
}

impl Clock {
    fn of(name: &str, run: &RunRecord) -> Result<Self, SourceError> {
        let clock = |tsc| Clock { exec_ns: run.exec_ns, total_ns: run.total_ns, tsc };
        match name {
            "mono" => Ok(clock(None)),
            // Counters alone.
            "" => Ok(clock(None)),
            "x86-tsc" => {
                Conversion::from_tsc(&run.clocks).map(|c| clock(Some(c))).ok_or_else(|| {
                    SourceError::Other(format!(
                        "{NAME}: two TSC readings are needed, but run.json has fewer"
                    ))
                })
            }
            other => Err(SourceError::Other(format!(
                "{NAME}: its clock is {other:?}; expected mono or x86-tsc"
            ))),
        }
    }

    fn at(&self, stamp: Stamp) -> Ns {
        let monotonic = match &self.tsc {
            Some(tsc) => tsc.to_monotonic(stamp as f64),
            None => Ns::try_from(stamp).unwrap_or(Ns::MAX),
        };
        monotonic.saturating_sub(self.exec_ns)
    }

    fn event(&self, stamp: Stamp, error: Ns, what: EventKind) -> Event {
        let reading = self.tsc.as_ref().map_or(0, |tsc| tsc.error_ns);
        // Counts alone are of the run's end.
        let at = if stamp == 0 { self.total_ns } else { self.at(stamp) };
        let error_ns = ERROR_NS.saturating_add(reading).saturating_add(error);
        Event { at, error_ns, source: NAME.into(), insns: None, what }
    }

    /// The guest's first instruction, and where it went from there.
    fn moments(&self, seen: &Seen, run: &RunRecord, events: &mut Vec<Event>) {
        let reached = |symbol: &str| EventKind::Reached { symbol: symbol.into() };
        let answered = seen.answered.map(|(at, _)| First { at, by: By::Answer });
        let Some(first) = seen.first.or(answered) else { return };
        let error = match first.by {
            By::Entry => 0,
            By::Exit => FIRST_EXIT_ERROR_NS,
            By::Consequence => self.since_main(first.at, run),
            By::Answer => self.since_made(seen, run),
        };
        let entered = seen.place.entered().filter(|_| !seen.place.has_firmware());
        if matches!(first.by, By::Entry | By::Exit) {
            events.push(self.event(first.at, error, reached("reset-vector")));
            events.extend(entered.map(|symbol| self.event(first.at, error, reached(symbol))));
        }
        let running = EventKind::RunState { state: "running".into() };
        events.push(self.event(first.at, error, running));
        // QEMU's own trace says when it stopped its guest.
        let killed = run.moment(&Moment::VmmKilled).is_some();
        let traced = run.sources.iter().any(|s| s.name == qemu_trace::NAME);
        if !killed && !traced && seen.acted > first.at {
            let over = EventKind::RunState { state: "shutdown".into() };
            events.push(self.event(seen.acted, 0, over));
        }
        events.extend(self.said(&seen.said, run));
        let mut between = |symbol: &str, between: Between| {
            let width = self.at(between.before).saturating_sub(self.at(between.after));
            events.push(self.event(between.before, width, reached(symbol)));
        };
        if let Some((rip, at)) = seen.place.image {
            between(if rip < KERNEL_LOAD { "bzimage-startup_32" } else { "pvh_start_xen" }, at);
        }
        if let Some(at) = seen.place.kernel.filter(|_| entered != Some(ENTRY_64)) {
            between(ENTRY_64, at);
        }
    }

    /// What the guest told its VMM, as marks.
    fn said(&self, said: &GuestSignal, run: &RunRecord) -> Vec<Event> {
        let timer = "Firecracker's boot timer: the guest has booted".to_owned();
        let heard = run.argv.iter().find_map(|word| backend::of_image(Path::new(word)));
        let codes = said
            .codes
            .iter()
            .filter_map(|(at, value)| Some((*at, heard?.debug_code(POST, *value)?)));
        let marks = said.boot_timer.map(|at| (at, timer)).into_iter().chain(codes);
        marks.map(|(at, text)| self.event(at, 0, EventKind::Note { text })).collect()
    }

    /// From the making of the last vCPU, or the VMM's `main`, to its first answer, ns.
    fn since_made(&self, seen: &Seen, run: &RunRecord) -> Ns {
        let Some((at, made)) = seen.answered else { return 0 };
        if made > 0 {
            self.at(at).saturating_sub(self.at(made)).max(0)
        } else {
            self.since_main(at, run)
        }
    }

    /// From the VMM's `main` to a stamp, ns.
    fn since_main(&self, stamp: Stamp, run: &RunRecord) -> Ns {
        let main = run.moment(&Moment::VmmMain).unwrap_or(0);
        self.at(stamp).saturating_sub(main).max(0)
    }
}

#[cfg(test)]
mod tests;
