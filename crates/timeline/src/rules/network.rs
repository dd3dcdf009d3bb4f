//! Booting over the network: iPXE as an option ROM that a BIOS enters, as a program that another
//! loader starts, and UEFI's own PXE; what they booted, told from what they tried in vain.
//!
//! iPXE's lines are those of src/arch/x86/prefix/romprefix.S, src/core/main.c and
//! src/usr/autoboot.c, SeaBIOS's those of src/boot.c.

use super::edk2::Cut;
use crate::anchors::{Anchor, Anchors, Stamp, Trust};
use crate::facts::RunIndex;
use crate::lines::{Hit, Line};
use crate::patterns::{Means, On};
use crate::tree::{Growing, Node};
use vmeter_model::Ns;

/// What an option ROM says when the BIOS enters it to boot.
const ENTERED: &str = "starting execution";
/// What iPXE says first, whoever started it.
const BEGINS: &str = "iPXE initialising devices";
/// What firmware did over the network, in vain for all that is known.
pub(crate) const NETWORK: &str = "bios:network-boot";
/// The same, of which what it loaded was started.
pub(super) const LOADS: &str = "bios:network-load";
/// It has loaded itself before.
const LOADS_ITSELF_NS: Ns = 200_000_000;
/// What is said when there was nothing to boot, by iPXE and by firmware that goes on.
const IN_VAIN: &[&str] = &[
    "No more network devices",
    "Booting from Hard Disk",
    "Booting from Floppy",
    "Booting from DVD",
    "No bootable device",
    ">>Start ",
    BDS,
];
/// No firmware has more boot options that are of the network.
const MOST_TRIED: usize = 200;
/// EDK2's boot manager.
const BDS: &str = "BdsDxe: ";
const STARTS: &str = "BdsDxe: starting Boot";

/// When iPXE began that booted the guest: exactly where the BIOS entered its ROM.
pub(super) fn boots<'a>(facts: &RunIndex<'a>) -> Option<(Trust, Stamp<'a>)> {
    let mut begun: Option<(Trust, Stamp<'a>)> = None;
    let mut started = false;
    for line in facts.lines.iter().filter(|l| l.early) {
        let stamp = |error| Stamp { at: line.at, error: line.error + error, source: line.source };
        if is_entered(line) {
            begun = Some((Trust::Exact, stamp(0)));
        } else if line.text.starts_with(BEGINS) {
            begun = begun.or(Some((Trust::Text, stamp(LOADS_ITSELF_NS))));
        } else if is_banner(line) && !started {
            // UEFI's driver for a card is iPXE itself, which says no more than who it is.
            begun = begun.or(Some((Trust::Exact, stamp(0))));
        } else if IN_VAIN.iter().any(|said| line.text.starts_with(said)) {
            started = line.text.starts_with(STARTS);
            begun = None;
        }
    }
    let (_, since) = begun?;
    let goes_on = |h: &Hit<'_>| h.on == On::Firmware && is_next(h.means) && h.at > since.at;
    begun.filter(|_| !facts.hits.iter().any(goes_on))
}

/// Names what UEFI itself loaded over the network and then started, which is no attempt in vain.
pub(super) fn loads(facts: &RunIndex<'_>, cuts: &mut [Cut<'_>]) {
    let tried = (0..cuts.len()).filter(|index| cuts[*index].0 == NETWORK);
    let tried: Vec<usize> = tried.take(MOST_TRIED).collect();
    for (nth, index) in tried.iter().enumerate() {
        let until = tried.get(nth + 1).map_or(facts.total, |next| cuts[*next].1);
        let inside = |l: &&Line<'_>| l.early && cuts[*index].1 < l.at && l.at <= until;
        let mut said = facts.lines.iter().filter(inside).filter(|l| l.text.starts_with(BDS));
        if said.next().is_some_and(|l| l.text.starts_with(STARTS)) {
            cuts[*index].0 = LOADS;
        }
    }
}

/// Where nobody saw the firmware begin: the last time that it entered an option ROM in vain, up
/// to the boot loader's begin.
pub(super) fn tried<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(loader) = anchors.get(Anchor::Loader) else { return };
    let mut before = facts.lines.iter().filter(|l| l.early && l.at < loader.at);
    let Some(entered) = before.rfind(|l| is_entered(l)) else { return };
    let node = Node::new(NETWORK, entered.at, loader.at, entered.source);
    tree.place(Node { error: entered.error.max(loader.error), ..node });
}

fn is_entered(line: &Line<'_>) -> bool {
    line.text.starts_with("iPXE ") && line.text.contains(ENTERED)
}

fn is_banner(line: &Line<'_>) -> bool {
    line.text
        .strip_prefix("iPXE ")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// True for what a BIOS says of the next that it tries.
fn is_next(means: Means) -> bool {
    matches!(
        means,
        Means::BeginsLast(Anchor::Loader, _)
            | Means::Part("bios:boot-failed" | "bios:no-bootable-device")
    )
}
