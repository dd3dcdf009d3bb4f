//! How long the VMM's threads waited for each page of a snapshot's files that are mapped: by the host
//! kernel's page faults ([`vmeter_machine::page_faults`]), from when the VMM opens such a file to the run's end.
//!
//! Under KVM the kernel takes a guest's faults itself, which are no such events. It counts all the same how
//! many major faults a process had, so that it is known when some were not seen.

use super::read_bounded;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vmeter_machine::launch::Tracee;
use vmeter_machine::page_faults::{taken, Fault, Faults, Watching};
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "page-faults";

/// Faults, a line each: begin (`CLOCK_MONOTONIC`, ns), how long its thread waited for the page, ns (0 if that was
/// there), number of the file, page of it, `major`, `read` (a minor one that waited) or `minor`, thread.
const FILE: &str = "page-faults.txt";
/// The kernel reads its clock when it begins and when it is done.
const ERROR_NS: Ns = 1_000;
/// Of the faults that the kernel counted, this share at least must have been seen.
const ENOUGH: f64 = 0.99;

/// The page faults of a snapshot's files.
pub struct PageFaults;

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub at: Ns,
    /// How long the thread waited until the page was read, ns; none if it was there.
    pub waited: Option<Ns>,
    /// It is a major one for the kernel.
    pub major: bool,
    /// Number of the snapshot's file.
    pub file: usize,
    /// Page of the file.
    pub page: u64,
    /// The thread.
    pub thread: i32,
}

/// What is known besides the faults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// The files, by their numbers.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Stamps that were lost.
    #[serde(default)]
    pub lost: u64,
    /// Major faults of the process, and those of them that were seen.
    #[serde(default)]
    pub major: (u64, u64),
    /// How long the VMM had mapped a file when its faults began to be stamped, ns.
    #[serde(default)]
    pub late_ns: u64,
    /// Major faults in the files, and those of them that had begun by then: only their ends were seen.
    #[serde(default)]
    pub late: (u64, u64),
}

impl Parameters {
    /// In words what is missing, if too much is for the waits to be known.
    pub fn missing(&self) -> Option<String> {
        let (counted, seen) = self.major;
        if self.lost > 0 {
            return Some(format!("{} stamps of page faults were lost", self.lost));
        }
        // The exec itself has some, before anybody looks.
        let few = |all: u64, seen: u64| seen + 2 < (all as f64 * ENOUGH).floor() as u64;
        if few(counted, seen) {
            return Some(format!(
                "the kernel counted {counted} major faults of the VMM, but vmeter saw only {seen} \
                    of them: vmeter does not see faults that KVM handles on behalf of a guest"
            ));
        }
        let (all, untimed) = self.late;
        few(all, all.saturating_sub(untimed)).then(|| {
            format!(
                "vmeter began to time the VMM's page faults {:.1} ms after the VMM had mapped \
                    the snapshot: by then, {untimed} of {all} major faults had already begun",
                self.late_ns as f64 / 1e6
            )
        })
    }
}

impl Recorder for PageFaults {
    type Parameters = Parameters;
    type Raw = (Vec<Waited>, Parameters);
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let snapshot = context.snapshot.filter(|_| context.watch != WatchLevel::None)?;
        let files = snapshot.files.iter().map(|file| file.path.clone()).collect();
        let path = context.dir.join(FILE);
        let recording = Recording { files, path, watching: None, before: 0, found: None };
        snapshot.mapped.then(|| Box::new(recording) as _)
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Parameters,
    ) -> Result<Self::Raw, SourceError> {
        let text = read_bounded(dir, source, 0)?;
        Ok((parse(&String::from_utf8_lossy(&text)), parameters))
    }

    fn decode(
        &self,
        (raw, _): &Self::Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let major = raw.iter().filter(|fault| fault.major).count() as u64;
        let count = |name: &str, value: u64| Event {
            at: saved.run.total_ns,
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: EventKind::Count { name: name.into(), value },
        };
        Ok(vec![count("snapshot_faults", raw.len() as u64), count("snapshot_major_faults", major)])
    }
}

fn parse(text: &str) -> Vec<Waited> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (at, took) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (file, page) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let how = words.next()?;
        let (major, waited) = (how == "major", (how != "minor").then_some(took));
        Some(Waited { at, waited, major, file, page, thread: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(line).collect()
}

struct Recording {
    files: Vec<PathBuf>,
    path: PathBuf,
    watching: Option<Watching>,
    /// Major faults that the process had when it was first looked at.
    before: u64,
    found: Option<(String, Parameters)>,
}

impl Live for Recording {
    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        // Of a wrapper nothing is kept.
        drop(self.watching.take().and_then(Watching::end));
        self.before = taken(tracee.pid).unwrap_or(0);
        let failed = |error| {
            SourceError::Other(format!(
                "{NAME}: vmeter cannot time the VMM's waits for \
                pages: {error}"
            ))
        };
        self.watching = Some(Watching::start(tracee.pid, &self.files).map_err(failed)?);
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let Some(found) = self.watching.take().and_then(Watching::end) else { return Ok(()) };
        let io = |error| SourceError::Io { path: format!("/proc/{}", tracee.pid).into(), error };
        let counted = taken(tracee.pid).map_err(io)?.saturating_sub(self.before);
        self.found = kept(&found, tracee.pid, counted, self.files.clone())
            .map_err(|why| SourceError::Other(format!("{NAME}: {why}")))?;
        Ok(())
    }

    fn finish(self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some((text, parameters)) = self.found else { return Ok(None) };
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let clock = "CLOCK_MONOTONIC, as stamped by perf";
        Ok(Some(recorder::record::<PageFaults>(&[FILE], clock, ERROR_NS, &parameters)))
    }
}

/// What is kept of a process's faults; nothing if it has mapped none of the files.
fn kept(
    found: &Faults,
    process: i32,
    counted: u64,
    files: Vec<PathBuf>,
) -> Result<Option<(String, Parameters)>, &'static str> {
    let Some(mapped) = found.first_mapped(process) else { return Ok(None) };
    let begun = found.begun.ok_or(
        "vmeter did not see when the VMM opened its snapshot, so vmeter timed no page faults",
    )?;
    let (mut text, mut major, mut late) = (String::new(), 0, (0, 0));
    // Where nothing of the files was read, a fault that took long waited for something else.
    let of_file = |fault: &Fault| found.page(fault.at, process, fault.address).is_some();
    let own = |fault: &&Fault| fault.process == process && fault.major;
    let reads = found.all.iter().filter(own).any(of_file);
    for fault in found.all.iter().filter(|fault| fault.process == process) {
        major += u64::from(fault.major);
        let Some((file, page)) = found.page(fault.at, process, fault.address) else { continue };
        late.0 += u64::from(fault.major);
        let how = match (fault.major, fault.waited) {
            (true, _) => "major",
            (false, Some(_)) if reads => "read",
            _ => "minor",
        };
        let (at, waited) = (fault.at, fault.waited.filter(|_| how != "minor").unwrap_or(0));
        let _ = writeln!(text, "{at} {waited} {file} {page} {how} {}", fault.thread);
    }
    for (at, _, address) in found.only_ended.iter().filter(|(_, of, _)| *of == process) {
        major += 1;
        let own = u64::from(found.page(*at, process, *address).is_some());
        late = (late.0 + own, late.1 + own);
    }
    let (lost, late_ns) = (found.lost, begun.saturating_sub(mapped));
    Ok(Some((text, Parameters { files, lost, major: (counted, major), late_ns, late })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_not_seen_is_said() {
        let parameters = |lost, major| Parameters { lost, major, ..Parameters::default() };
        assert_eq!(parameters(0, (400, 397)).missing(), None);
        assert_eq!(parameters(0, (3, 1)).missing(), None, "the exec's own");
        let kvm = parameters(0, (400, 20)).missing().expect("most are");
        assert!(kvm.contains("400") && kvm.contains("20"), "{kvm}");
        assert!(parameters(1, (0, 0)).missing().is_some());
        let late = |late| Parameters { late, late_ns: 2_500_000, ..Parameters::default() };
        assert_eq!(late((400, 1)).missing(), None);
        let many = late((400, 20)).missing().expect("too many");
        assert!(many.contains("2.5 ms") && many.contains("20 of 400"), "{many}");
        let found = parse("5 70 0 33 major 9\nx\n6 1 0 34 minor 9\n");
        let shown: Vec<_> = found.iter().map(|w| (w.at, w.waited, w.page)).collect();
        assert_eq!(shown, [(5, Some(70), 33), (6, None, 34)]);
    }

    proptest! {
        #[test]
        fn any_text(text in "[0-9 a-z\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
