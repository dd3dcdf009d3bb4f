//! One register that the guest accesses so often that it hardly does anything else: data that goes
//! through a port a byte or a word at a time.
//!
//! No access of it is slow, and its peers are not quicker: what takes the time is how many there
//! are. Consoles and PCI configuration by ports have detectors of their own ([`super::exits`]).

use super::exits::{is_console, is_pci_config};
use super::view::LEAST_COUNT;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject, SubjectKind};
use crate::kind::Why;
use crate::result::Severity;
use vmeter_render::quantity::{brief_percent, grouped};

/// Fewer accesses are no data: a disk's sector has 256 words.
const MANY: u64 = 4_096;
/// Share of all accesses from which a guest does nothing else with devices.
const MOST: f64 = 0.6;
/// Share of the traced time, by what is seen of the accesses.
const FILLS: f64 = 0.2;

/// A register that moves data a unit at a time.
pub struct SmallAccesses;

impl Detector for SmallAccesses {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut all = view.requests();
        // KVM's own trace has the times, where there is one.
        if all.is_empty() && view.seconds(1).is_some() {
            all = view.subjects(SubjectKind::is_logged);
        }
        let most = all.iter().max_by_key(|(_, subject)| subject.count);
        let Some((key, subject)) = most.copied() else { return Vec::new() };
        let accesses: u64 = all.iter().map(|(_, subject)| subject.count).sum();
        self.most(view, key, subject, accesses).into_iter().collect()
    }
}

impl SmallAccesses {
    fn most(
        &self,
        view: &View<'_>,
        key: Key,
        subject: &Subject,
        accesses: u64,
    ) -> Option<Candidate> {
        let (number, write, logged) = match key.what {
            SubjectKind::Port { port, write } => (Some(port), write, false),
            SubjectKind::LoggedPort { port, write } => (Some(port), write, true),
            SubjectKind::Mmio { write, .. } => (None, write, false),
            SubjectKind::LoggedMmio { write, .. } => (None, write, true),
            _ => return None,
        };
        let of_all = subject.count as f64 / accesses.max(1) as f64;
        let few = subject.count < MANY || subject.timed < LEAST_COUNT || of_all < MOST;
        let told = number.is_some_and(|port| is_console(port) || is_pci_config(port));
        if few || told || view.share(subject.total) < FILLS {
            return None;
        }
        let (name, share) = (view.subject(key), view.share(subject.total));
        let (verb, noun) = if write { ("writes", " write") } else { ("reads", " read") };
        let register = name.replacen(noun, "", 1);
        let count = grouped(&subject.count.to_string());
        let what = if logged { "a call of the device model" } else { "an exit" };
        let every = view.evidence.span() as f64 / subject.count as f64;
        let bound = if logged {
            "The log does not show how long the guest runs in this time"
        } else {
            "The times are from each exit to the guest's next entry; in a KVM trace without \
                kvm_exit, from kvm_userspace_exit to the next KVM_RUN"
        };
        let claim = format!(
            "these {verb} are {count} of all {} accesses; they come every {} on average, and \
                together they take {} ({} of the traced time); none of them is slow (median \
                {}). {bound}",
            grouped(&accesses.to_string()),
            view.time(every),
            view.time(subject.total as f64),
            brief_percent(share),
            view.time(subject.length.quantile(0.5).unwrap_or(0.0)),
        );
        let figures = [("of_all_accesses", of_all), ("mean_interval_ticks", every)];
        let places = [subject.first.map(|place| (0, place)), subject.worst];
        Some(Candidate {
            why: Why::Accesses,
            key: Some(key),
            saving: subject.total,
            summary: format!(
                "the guest {verb} {register} in small pieces: each of {count} {verb} costs {what}; \
                    together they take {} of the traced time",
                brief_percent(share),
            ),
            chain: vec![view.link(
                key.file,
                claim,
                (subject.count, subject.total),
                &figures,
                &places,
            )],
            suggestion: remedy(&name).into(),
            subject: name,
            confirm:
                "perf kvm stat record -p PID; perf kvm stat report --event=ioport (look \
                at the count and time of the accesses to each port, or, with --event=mmio, to \
                each address; then let the guest use DMA or a paravirtual device, and record again)"
                    .into(),
            max_severity: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}

/// What moves more at once, by what is there.
fn remedy(name: &str) -> &'static str {
    if name.contains("fw_cfg") {
        "fw_cfg's DMA interface (port 0x514) moves the data in one access: take a firmware that \
            uses this interface, and a machine type that has it"
    } else if name.contains("IDE") {
        "use bus-master DMA or a paravirtual disk (virtio-blk), or else more sectors per command \
            (READ MULTIPLE)"
    } else {
        "an interface that moves more bytes per access: DMA, shared memory, string instructions, \
            a paravirtual device"
    }
}
