//! QEMU's own trace events, by its `log` back end.
//!
//! `-trace events=FILE -D LOG -msg timestamp=on` writes one line an event,
//! `pid@seconds.microseconds:name arguments`, stamped with `gettimeofday()`
//! (QEMU: util/log.c, scripts/tracetool/backend/log.py). Only events that are
//! few in a boot are asked for: some hundreds of lines in all.
//!
//! Under TCG the log has the CPU's resets as well (`-d cpu_reset`), and among them the one
//! word that a triple fault leaves; of an unwatched boot it has nothing else.

use super::{blamed_line, read_bounded};
use crate::clock::Conversion;
use crate::end::EndEvidence;
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_machine::argv;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Accel, Event, EventKind, Moment, Ns, RunRecord, SnapshotPart};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "qemu-trace";

const LOG: &str = "qemu-trace.log";
const EVENTS: &str = "qemu-trace.events";

/// The events asked for. QEMU ignores, with a warning, those it does not know.
const WANTED: &[&str] = &[
    "runstate_set",
    "fw_cfg_select",
    "port92_write",
    "pci_cfg_read",
    "pci_cfg_write",
    "qemu_system_shutdown_request",
    "qemu_system_powerdown_request",
];

/// Asked for besides where a boot loader reads the kernel from a disk.
const DISK_READ: &str = "blk_co_preadv";
/// The same: a firmware's drivers reset their devices when its services end.
const VIRTIO_STATUS: &str = "virtio_set_status";
/// Asked for instead where a snapshot is restored (migration/trace-events): the sections of its stream.
const OF_SNAPSHOT: &[&str] = &[
    "runstate_set",
    "qemu_system_shutdown_request",
    "qemu_system_powerdown_request",
    "loadvm_state_setup",
    SECTION,
    SECTION_AGAIN,
    "qemu_loadvm_state_post_main",
];
/// A section begins that has a name.
const SECTION: &str = "qemu_loadvm_state_section_startfull";
/// More of a section that began before.
const SECTION_AGAIN: &str = "qemu_loadvm_state_section_partend";
/// The section of the guest's memory.
const RAM: &str = "ram";

/// What is asked for of a machine whose kernel QEMU does not load.
const OF_DISKS: [&str; 2] = [DISK_READ, VIRTIO_STATUS];

/// QEMU's trace log.
pub struct QemuTrace;

impl Recorder for QemuTrace {
    type Parameters = NoParameters;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let resets = context.accel != Some(Accel::Kvm);
        let traced = context.watch != WatchLevel::None;
        let restored = context.vmm.restored.is_some();
        let dir = context.dir.to_owned();
        let recording = Recording { dir, traced, restored, resets, armed: false };
        (context.vmm.trace_events && (traced || resets)).then(|| Box::new(recording) as _)
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Self::Raw, SourceError> {
        let bytes = read_bounded(dir, source, 0)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut sections = Sections::default();
        Ok(Raw {
            events: text.lines().filter_map(|line| sections.parse(line)).collect(),
            triple_faults: text.lines().filter(|line| *line == TRIPLE_FAULT).count() as u64,
        })
    }

    fn decode(
        &self,
        raw: &Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let clock = Conversion::from_realtime(&saved.run.clocks)
            .ok_or_else(|| SourceError::Other("run.json has no clock readings".into()))?;
        let events = raw.events.iter().map(|(micros, what)| Event {
            at: clock.to_monotonic(*micros as f64 * 1e3).saturating_sub(saved.run.exec_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: what.clone(),
        });
        Ok(events.collect())
    }

    fn clues(&self, raw: &Raw, clues: &mut EndEvidence) {
        clues.triple_faults = clues.triple_faults.saturating_add(raw.triple_faults);
    }

    /// Notes when the machine began to run, which aligns the guest's TSC under TCG.
    fn refine_run(&self, dir: &Path, run: &mut RunRecord) {
        let (events, _) = crate::decode::of_source(dir, run, NAME);
        let running =
            |what: &EventKind| matches!(what, EventKind::RunState { state } if state == "running");
        if let Some(event) = events.iter().find(|e| running(&e.what)) {
            run.moments.push((event.at, Moment::VmStart));
        }
    }
}

/// What the log says.
#[derive(Debug)]
pub struct Raw {
    /// Trace events: µs since the epoch, and what.
    events: Vec<(u64, EventKind)>,
    triple_faults: u64,
}

/// What QEMU logs of a triple fault (target/i386/tcg/excp_helper.c).
const TRIPLE_FAULT: &str = "Triple fault";

struct Recording {
    dir: PathBuf,
    /// True if its trace events are asked for.
    traced: bool,
    /// True for a machine that is restored from a snapshot.
    restored: bool,
    /// True if the CPU's resets are.
    resets: bool,
    armed: bool,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        // A log of the user's own would be redirected by ours.
        if !plan.may_inject || plan.argv.iter().any(|a| a == "-D" || a == "-trace") {
            return Ok(());
        }
        let log = self.dir.join(LOG).display().to_string();
        let resets = self.resets && !plan.argv.iter().any(|a| a == "-d");
        if resets {
            self.armed = plan.inject(&["-d", "cpu_reset"]);
        }
        if !self.traced {
            self.armed = resets && plan.inject(&["-D", &log]);
            return Ok(());
        }
        let events = self.dir.join(EVENTS);
        // What a boot loader reads tells what it is at.
        let loaded = !argv::loads_kernel(&plan.argv);
        let of_disks = OF_DISKS.iter().filter(|_| loaded);
        let wanted: Vec<&str> = match self.restored {
            true => OF_SNAPSHOT.to_vec(),
            false => WANTED.iter().chain(of_disks).copied().collect(),
        };
        std::fs::write(&events, wanted.join("\n") + "\n")
            .map_err(|error| SourceError::Io { path: events.clone(), error })?;
        let events = format!("events={}", events.display().to_string().replace(',', ",,"));
        self.armed |= plan.inject(&["-trace", &events, "-D", &log, "-msg", "timestamp=on"]);
        Ok(())
    }

    fn blamed(&self, stderr: &str) -> Option<String> {
        blamed_line(stderr, &[LOG, EVENTS]).filter(|_| self.armed)
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        if !self.armed || !self.dir.join(LOG).exists() {
            return Ok(None);
        }
        let clock =
            "wall clock; vmeter reads it and CLOCK_MONOTONIC together before and after the run";
        Ok(Some(recorder::record::<QemuTrace>(&[LOG], clock, 2_000, &NoParameters {})))
    }
}

/// The names of a snapshot's sections, by their numbers.
#[derive(Debug, Default)]
struct Sections(BTreeMap<u32, String>);

impl Sections {
    /// As [`parse`], with the sections of a snapshot.
    fn parse(&mut self, line: &str) -> Option<(u64, EventKind)> {
        let (at, name, arguments) = split(line)?;
        let part = match name {
            SECTION => {
                // `%u(%s) %u %u`: number, name, instance, version.
                let (number, rest) = arguments.split_once('(')?;
                let (name, _) = rest.rsplit_once(')')?;
                self.0.insert(number.parse().ok()?, name.to_owned());
                of_section(name)
            }
            SECTION_AGAIN => of_section(self.0.get(&arguments.trim().parse().ok()?)?),
            "loadvm_state_setup" => SnapshotPart::State { device: String::new() },
            "qemu_loadvm_state_post_main" => SnapshotPart::Loaded,
            _ => return Some((at, interpret(name, arguments)?)),
        };
        Some((at, EventKind::SnapshotPart { part }))
    }
}

fn of_section(name: &str) -> SnapshotPart {
    match name {
        RAM => SnapshotPart::Ram,
        device => SnapshotPart::State { device: device.to_owned() },
    }
}

/// One line to (µs since the epoch, what); none for lines that say nothing to us.
#[cfg(test)]
fn parse(line: &str) -> Option<(u64, EventKind)> {
    Sections::default().parse(line)
}

/// One line to (µs since the epoch, name, arguments).
fn split(line: &str) -> Option<(u64, &str, &str)> {
    let (_, rest) = line.split_once('@')?;
    let (stamp, rest) = rest.split_once(':')?;
    let (seconds, micros) = stamp.split_once('.')?;
    if micros.len() != 6 {
        return None;
    }
    let at = seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(micros.parse::<u64>().ok()?)?;
    let (name, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((at, name, arguments))
}

fn interpret(name: &str, arguments: &str) -> Option<EventKind> {
    match name {
        "runstate_set" => {
            let state = arguments.rsplit_once('(')?.1.trim_end().strip_suffix(')')?;
            Some(EventKind::RunState { state: state.into() })
        }
        "fw_cfg_select" => {
            let key = arguments.split_once("key 0x")?.1.split(' ').next()?;
            Some(EventKind::FwCfg { item: u32::from_str_radix(key, 16).ok()?, bytes: 0 })
        }
        "pci_cfg_read" | "pci_cfg_write" => {
            let (device, rest) = arguments.split_once(" @0x")?;
            let register = rest.split(' ').next()?;
            Some(EventKind::PciConfig {
                write: name == "pci_cfg_write",
                device: device.into(),
                register: u32::from_str_radix(register, 16).ok()?,
            })
        }
        DISK_READ => {
            let mut words = arguments.split(' ');
            let mut after = |name: &str| {
                words.by_ref().find(|word| *word == name)?;
                words.next()
            };
            let disk = u64::from_str_radix(after("blk")?.strip_prefix("0x")?, 16).ok()?;
            let (offset, bytes) = (after("offset")?.parse().ok()?, after("bytes")?.parse().ok()?);
            Some(EventKind::DiskRead { disk, offset, bytes })
        }
        VIRTIO_STATUS => {
            (arguments.split(' ').next_back()? == "0").then_some(EventKind::VirtioReset)
        }
        "qemu_system_shutdown_request" => Some(EventKind::PowerOff),
        "qemu_system_powerdown_request" => Some(EventKind::ShutdownStart),
        "port92_write" => Some(EventKind::Note { text: "port92_write".into() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_qemu_7_2_are_understood() {
        let say = |line: &str| parse(line).unwrap().1;
        assert_eq!(
            parse("8776@1795225511.433382:runstate_set current_run_state 6 (prelaunch) new_state 9 (running)"),
            Some((1_795_225_511_433_382, EventKind::RunState { state: "running".into() }))
        );
        assert_eq!(
            say("8778@1795225511.504007:fw_cfg_select 0x55f80f975130 key 0x0012 'initrd_data', ret: 1"),
            EventKind::FwCfg { item: 0x12, bytes: 0 }
        );
        assert_eq!(
            say("8778@1795225513.368485:pci_cfg_read ICH9-SMB 00:1f.3 @0xc -> 0x0"),
            EventKind::PciConfig { write: false, device: "ICH9-SMB 00:1f.3".into(), register: 12 }
        );
        assert_eq!(
            say("8778@1795225514.037000:qemu_system_shutdown_request reason=6"),
            EventKind::PowerOff
        );
        assert_eq!(
            say("1@1795331967.649166:blk_co_preadv blk 0x55 bs 0x56 offset 512 bytes 1024 flags 0x8"),
            EventKind::DiskRead { disk: 0x55, offset: 512, bytes: 1024 }
        );
        assert_eq!(
            say("1@1795331967.649166:virtio_set_status vdev 0x55 val 0"),
            EventKind::VirtioReset
        );
        assert_eq!(parse("1@1795331967.649166:virtio_set_status vdev 0x55 val 15"), None);
        assert_eq!(parse("qemu-system-x86_64: warning: something"), None);
    }

    #[test]
    fn sections_of_a_snapshot_keep_their_names() {
        let log = [
            "loadvm_state_setup ",
            "qemu_loadvm_state_section_startfull 2(ram) 0 4",
            "qemu_loadvm_state_section_partend 2",
            "qemu_loadvm_state_section_partend 7",
            "qemu_loadvm_state_section_startfull 3(0000:00:1f.2/ich9_ahci) 0 1",
            "qemu_loadvm_state_post_main 0",
        ];
        let mut sections = Sections::default();
        let lines = log.iter().map(|line| format!("1@2.000003:{line}"));
        let found: Vec<_> = lines.filter_map(|line| Some(sections.parse(&line)?.1)).collect();
        let part = |part| EventKind::SnapshotPart { part };
        let state = |device: &str| part(SnapshotPart::State { device: device.into() });
        let expected = [
            state(""),
            part(SnapshotPart::Ram),
            part(SnapshotPart::Ram),
            state("0000:00:1f.2/ich9_ahci"),
            part(SnapshotPart::Loaded),
        ];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC*") {
            let _ = parse(&line);
        }

        #[test]
        fn no_arguments_panic(name in "(runstate_set|fw_cfg_select|pci_cfg_read|port92_write|blk_co_preadv|qemu_loadvm_state_section_startfull|qemu_loadvm_state_section_partend)", rest in "[ @x0-9a-fblkost():key'-]*") {
            let _ = parse(&format!("1@2.000003:{name} {rest}"));
        }
    }
}
