//! Exits that need not be: one a byte on a console, two for a word of PCI configuration.

use super::view::LEAST_SHARE;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject, SubjectKind};
use crate::kind::Why;
use crate::result::Link;
use vmeter_render::quantity::brief_percent;

/// Fewer accesses than this are no log.
const LOG: u64 = 200;

/// Consoles with an exit a byte: data port, and the port that is polled before each byte.
const CONSOLES: [(u32, Option<u32>); 7] = [
    (0x3f8, Some(0x3fd)),
    (0x2f8, Some(0x2fd)),
    (0x3e8, Some(0x3ed)),
    (0x2e8, Some(0x2ed)),
    (0xe9, None),
    (0x402, None),
    (0x378, None),
];

/// True for the ports of a console.
pub(super) fn is_console(port: u32) -> bool {
    CONSOLES.iter().any(|(data, status)| *data == port || *status == Some(port))
}

/// True for the ports of PCI configuration.
pub(super) fn is_pci_config(port: u32) -> bool {
    (0xcf8..=0xcff).contains(&port)
}

/// A console written byte for byte.
pub struct UnbufferedConsole;

impl Detector for UnbufferedConsole {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let requests = view.requests();
        let find = |file: u16, port: u32, write: bool| {
            let key = Key { file, what: SubjectKind::Port { port, write } };
            requests.iter().find(|(known, _)| *known == key).map(|(_, subject)| *subject)
        };
        let mut all = Vec::new();
        for (key, subject) in &requests {
            let SubjectKind::Port { port, write: true } = key.what else { continue };
            let Some((_, status)) = CONSOLES.iter().find(|(data, _)| *data == port) else {
                continue;
            };
            let polled = status.and_then(|status| find(key.file, status, false));
            all.extend(self.of(view, *key, subject, polled));
        }
        all
    }
}

impl UnbufferedConsole {
    fn of(
        &self,
        view: &View<'_>,
        key: Key,
        subject: &Subject,
        polled: Option<&Subject>,
    ) -> Option<Candidate> {
        let polls = polled.map_or((0, 0), |polled| (polled.count, polled.total));
        let saving = subject.total.saturating_add(polls.1);
        if subject.count < LOG || view.share(saving) < LEAST_SHARE {
            return None;
        }
        let name = view.subject(key);
        let mut chain = vec![bytes_link(view, key, subject)];
        if let Some(polled) = polled.filter(|polled| polled.count > 0) {
            chain.push(view.link(
                key.file,
                format!(
                    "before each byte, the driver reads the line status: these reads cause {} \
                        more exits, which take {} in all",
                    polled.count,
                    view.time(polled.total as f64)
                ),
                (polled.count, polled.total),
                &[("polls_per_byte", polled.count as f64 / subject.count.max(1) as f64)],
                &[polled.worst],
            ));
        }
        Some(Candidate {
            why: Why::Accesses,
            key: Some(key),
            saving,
            summary: format!(
                "the guest's console causes an exit for each byte: {} bytes on {name} take {} exits and \
                 {} in all",
                subject.count,
                subject.count + polls.0,
                view.time(saving as f64)
            ),
            subject: name,
            chain,
            suggestion: "boot with `quiet`, or put the console on virtio-console (hvc0), which \
                         takes one exit a line"
                .into(),
            confirm: "vmeter boot --append quiet (`vmeter trace stat TRACE --vs TRACE_QUIET --per \
                      trace` compares recorded traces)"
                .into(),
            ..Candidate::default()
        })
    }
}

/// PCI configuration by address and data port.
pub struct PciPorts;

impl Detector for PciPorts {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let requests = view.requests();
        let address = |key: &Key| key.what == SubjectKind::Port { port: 0xcf8, write: true };
        let found = requests.iter().filter(|(key, _)| address(key));
        found.filter_map(|(key, subject)| self.of(view, *key, subject, &requests)).collect()
    }
}

impl PciPorts {
    fn of(
        &self,
        view: &View<'_>,
        key: Key,
        subject: &Subject,
        requests: &[(Key, &Subject)],
    ) -> Option<Candidate> {
        let saving = subject.net_total;
        if subject.count < LOG || view.share(saving) < LEAST_SHARE {
            return None;
        }
        let data = |other: &Key| {
            other.file == key.file
                && matches!(other.what, SubjectKind::Port { port: 0xcfc..=0xcff, .. })
        };
        let data = requests.iter().filter(|(other, _)| data(other));
        let words: u64 = data.map(|(_, subject)| subject.count).sum();
        // Some other device than PCI has the port, if no word follows its address.
        if words.saturating_mul(4) < subject.count {
            return None;
        }
        let name = view.subject(key);
        Some(Candidate {
            why: Why::Accesses,
            key: Some(key),
            saving,
            summary: format!(
                "PCI configuration goes through ports, with two exits for each word (one at \
                 0xcf8, one at 0xcfc): {} writes to 0xcf8, for {words} words, take {}",
                subject.count,
                view.time(saving as f64)
            ),
            chain: vec![view.link(
                key.file,
                format!(
                    "{} writes to {name} only select the word for the next access to 0xcfc; these \
                        writes take {}, which is {} of the traced time",
                    subject.count,
                    view.time(saving as f64),
                    brief_percent(view.share(saving))
                ),
                (subject.count, saving),
                &[("words", words as f64)],
                &[subject.first.map(|place| (0, place)), subject.worst],
            )],
            subject: name,
            suggestion: "use a machine with ECAM (q35, MMCONFIG enabled), where each access to a \
                PCI configuration word costs one exit instead of two; to avoid even that exit, \
                let the guest scan fewer buses and functions"
                .into(),
            confirm: "vmeter sweep --machine q35 --pcie-root-ports 0 (look at the counts \
                pci_config_reads and pci_config_writes)"
                .into(),
            ..Candidate::default()
        })
    }
}

fn bytes_link(view: &View<'_>, key: Key, subject: &Subject) -> Link {
    let mean = subject.total as f64 / subject.timed.max(1) as f64;
    let claim = format!(
        "each byte written causes an exit: {} writes to {}, {} each (median {}), {} in all, {} \
            of the traced time",
        subject.count,
        view.subject(key),
        view.time(mean),
        view.time(subject.length.quantile(0.5).unwrap_or(0.0)),
        view.time(subject.total as f64),
        brief_percent(view.share(subject.total)),
    );
    let places = [subject.first.map(|place| (0, place)), subject.worst];
    view.link(key.file, claim, (subject.count, subject.total), &[("mean_ticks", mean)], &places)
}
