//! What speaks between the loading of what is booted and the first line of a kernel, and is neither
//! firmware, nor boot loader, nor Linux's own image: a hypervisor that starts a kernel, or another
//! program. A kernel is Linux's from evidence of Linux alone, so what was entered before it spoke was
//! no kernel's image, and its time is not the kernel's.

use super::firmware::load_interval;
use super::{no_spans, RuleSet};
use crate::anchors::{Anchor, Candidates, Stamp, Trust};
use crate::facts::RunIndex;
use crate::landmarks::ALIGNED_ENTRY;
use crate::lines::{Line, BANNER};
use crate::patterns::On;
use vmeter_model::Ns;

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans: no_spans };

/// What every line of Xen begins with (xen/drivers/char/console.c).
pub(crate) const XEN: &str = "(XEN) ";
/// What Linux's image says before its kernel does (arch/x86/boot).
const OF_IMAGE: &[&str] = &[
    "Probing EDD",
    "early console in",
    "Decompressing Linux",
    "Parsing ELF",
    "No relocation needed",
    "Performing relocations",
    "Booting the kernel",
    "KASLR ",
    "Physical KASLR",
    "Virtual KASLR",
    "EFI stub: ",
];
/// So many lines that are nobody's else are another program's.
const LINES: usize = 3;
/// A line arrives so late, ns, and waits as long for its end.
const LATE_NS: Ns = 50_000_000;

/// Another program than firmware, boot loader and kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Another<'a> {
    /// Its first word.
    first: Stamp<'a>,
    /// Its last before the kernel's first.
    last: Ns,
    /// It is a hypervisor that says so.
    pub is_hypervisor: bool,
}

/// Whoever spoke after what was loaded had begun, if it was not Linux's image.
pub(crate) fn another<'a>(facts: &RunIndex<'a>) -> Option<Another<'a>> {
    let early = || facts.lines.iter().filter(|line| line.early);
    let own = |line: &&Line<'a>| line.text.starts_with(XEN);
    if let (Some(first), Some(last)) = (early().find(own), early().rfind(own)) {
        return Some(Another { first: stamp(first), last: last.at, is_hypervisor: true });
    }
    let (_, loaded) = load_interval(facts)?;
    // What a quiet guest's programs say comes before any line of its kernel, too.
    facts
        .lines
        .iter()
        .find(|line| line.console && !line.early)
        .filter(|l| l.text.starts_with(BANNER))?;
    // A boot loader that the VMM loads as a kernel says what it likes.
    if facts.hits.iter().any(|hit| hit.on == On::Loader && hit.at > loaded.at) {
        return None;
    }
    let foreign = |line: &&Line<'a>| {
        line.at > loaded.at.saturating_add(LATE_NS)
            && line.text.chars().any(char::is_alphanumeric)
            && !OF_IMAGE.iter().any(|begin| line.text.starts_with(begin))
    };
    let last = early().rfind(foreign).filter(|_| early().filter(foreign).count() >= LINES)?;
    Some(Another { first: stamp(early().find(foreign)?), last: last.at, is_hypervisor: false })
}

fn stamp<'a>(line: &Line<'a>) -> Stamp<'a> {
    Stamp { at: line.at, error: line.error, source: line.source }
}

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let Some(another) = facts.another else { return };
    let image = [Anchor::KernelFirst, Anchor::Decompress];
    found.retain(|anchor, stamp| match anchor {
        anchor if image.contains(&anchor) => stamp.at > another.last,
        Anchor::KernelEntry => stamp.at > another.first.at,
        _ => true,
    });
    // The kernel was not there as long as nothing but the other had spoken.
    found.bound(Anchor::KernelEntry, |at| (at > another.last).then_some(another.last));
    if another.is_hypervisor {
        let first = another.first;
        let error = first.error.saturating_add(LATE_NS);
        found.offer(Anchor::Hypervisor, Trust::Text, Stamp { error, ..first });
        let entered = facts.reached.iter().rfind(|(symbol, at)| {
            *symbol == ALIGNED_ENTRY && (0..=LATE_NS).contains(&(first.at - at.at))
        });
        let begun = entered.map(|(_, at)| *at).or_else(|| Some(load_interval(facts)?.1));
        if let Some(begun) = begun.filter(|begun| begun.at <= first.at) {
            found.offer(Anchor::Hypervisor, Trust::Near, begun);
        }
    }
}
