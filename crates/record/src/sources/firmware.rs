//! The firmware's debug log on port 0x402, stamped on arrival.
//!
//! SeaBIOS and OVMF write their log to QEMU's `isa-debugcon` if it answers
//! there (SeaBIOS: src/hw/serialio.c, `CONFIG_DEBUG_IO`). The log has no stamps.

use super::read_bounded;
use crate::end::EndEvidence;
use crate::piped::Piped;
use crate::recorder::{Context, Live, Recorder, Saved, SourceError};
use crate::stamped::{Dropped, Line, Lines};
use rustix::event::Timespec;
use std::path::Path;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "firmware";

const FILE: &str = "firmware.chunks";

/// How late an arrival can be stamped on a host that is not overloaded, ns.
pub(crate) const ARRIVAL_ERROR_NS: Ns = 200_000;

/// SeaBIOS writes its log byte by byte, 3,400 of them in a boot.
const PACE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const ERROR_NS: Ns = PACE.tv_nsec + ARRIVAL_ERROR_NS;

/// The firmware's log.
pub struct Firmware;

impl Recorder for Firmware {
    type Parameters = Dropped;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        // qboot writes no log, and a microvm has no port to write it to.
        let silent = context.spec.firmware.as_deref() == Some("qboot")
            || context.spec.machine.as_deref() == Some("microvm");
        (context.watch != WatchLevel::None && context.vmm.firmware_log && !silent)
            .then(|| Box::new(Recording(Piped::to(context.dir, FILE))) as _)
    }

    fn read(&self, dir: &Path, source: &SourceRecord, cut: Dropped) -> Result<Raw, SourceError> {
        Ok(Raw { lines: Lines::of(&read_bounded(dir, source, 0)?).lines, cut })
    }

    fn decode(
        &self,
        raw: &Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let said = raw.lines.iter().filter(|line| !line.text.is_empty());
        let events = said.map(|line| Event {
            at: line.start.saturating_sub(saved.run.exec_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: EventKind::FirmwareLine { text: line.text.clone() },
        });
        Ok(events.collect())
    }

    fn clues(&self, raw: &Raw, clues: &mut EndEvidence) {
        clues.cut.extend(raw.cut.said("the firmware's log"));
    }
}

/// The log's lines, and what of it was not kept.
#[derive(Debug)]
pub struct Raw {
    lines: Vec<Line>,
    cut: Dropped,
}

struct Recording(Piped);

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let taken = plan.argv.iter().any(|a| a.to_string_lossy().contains("isa-debugcon"));
        if !plan.may_inject || taken {
            return Ok(());
        }
        if plan.only_words {
            return Ok(());
        }
        let device = "isa-debugcon,iobase=0x402,chardev=vmeter-firmware";
        if let Some(folder) = &plan.by_path {
            let path = folder.join("firmware");
            self.0.begin_at(&path, Some(PACE))?;
            // QEMU takes a doubled comma for one in a value.
            let path = path.display().to_string().replace(',', ",,");
            let file = format!("file,id=vmeter-firmware,path={path},append=on");
            plan.inject(&["-chardev", &file, "-device", device]);
            return Ok(());
        }
        let fd = plan.pass_fd(self.0.begin(None, Some(PACE))?);
        // Set 9402: an fdset of our own, so that the pipe is opened by number, not by name.
        let added = format!("fd={fd},set=9402");
        plan.inject(&[
            "-add-fd",
            &added,
            "-chardev",
            // Appending, since QEMU would truncate it, which a pipe refuses.
            "file,id=vmeter-firmware,path=/dev/fdset/9402,append=on",
            "-device",
            device,
        ]);
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        self.0.source::<Firmware>(FILE, "stamped on arrival", ERROR_NS)
    }
}
