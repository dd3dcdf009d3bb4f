//! The firmware: parts of `bios:overhead` by its log, and `kernel:load`.
//!
//! QEMU hands kernel, initrd and command line to the firmware through fw_cfg
//! (docs/specs/fw_cfg.rst; the keys are in include/standard-headers/linux/
//! qemu_fw_cfg.h and hw/nvram/fw_cfg.h). The option ROM `linuxboot_dma.bin`
//! selects them in the order setup, initrd, kernel, command line, once each, and
//! jumps to the setup code after the last; `pvh.bin` and qboot also ask for the
//! entry point of an uncompressed kernel.

use super::edk2::Cut;
use super::network::{self, NETWORK};
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::facts::RunIndex;
use crate::landmarks::{loaded_a_loader, loaded_compressed, loaded_entry};
use crate::landmarks::{IMAGE_LOADED, IMAGE_LOADING};
use crate::lines::{Hit, Line};
use crate::patterns::{Means, On};
use crate::tree::{Growing, Node};
use std::ops::RangeInclusive;
use vmeter_model::{EventKind, Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };
/// `kernel:load`, cut out of the firmware's time when its parts stand.
pub(crate) const LOADING: RuleSet = RuleSet { anchors: no_anchors, spans: loading };

/// fw_cfg keys of what is loaded: kernel, initrd, command line, setup code, and
/// their addresses and sizes.
const LOADED: [RangeInclusive<u32>; 3] = [0x07..=0x08, 0x0a..=0x0b, 0x10..=0x18];
/// From the last selection to the kernel's first instruction: the command line
/// is copied and the ROM jumps. Without DMA, a byte at a time.
const AFTER_LAST_NS: Ns = 1_000_000;
/// The BIOS enters what it boots.
const BOOTS: &str = "bios:boot";
/// What a BIOS says on the console as it goes on to what it boots.
const GOES_ON: &str = "Booting from ";
/// The same of an option ROM: QEMU's own loads the kernel that QEMU was given.
const TO_ROM: &str = "Booting from ROM";
/// From that word to a boot sector's first instruction: the sector, or a CD's boot image, is read.
const READS_SECTOR_NS: Ns = 20_000_000;

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if let Some((_, last)) = load_interval(facts) {
        let error = last.error.saturating_add(AFTER_LAST_NS);
        let loader = loaded_a_loader(facts.seen).is_some();
        let anchor = if loader { Anchor::Loader } else { Anchor::KernelFirst };
        found.offer(anchor, Trust::Near, Stamp { error, ..last });
    }
    if let Some(rom) = to_rom(facts) {
        found.offer(Anchor::KernelFirst, Trust::Text, rom);
    } else if let Some(line) = goes_on(facts).filter(|l| !l.text.starts_with(TO_ROM)) {
        let error = line.error.saturating_add(READS_SECTOR_NS);
        let stamp = Stamp { at: line.at, error, source: line.source };
        found.offer(Anchor::Loader, Trust::Text, stamp);
    }
}

/// The BIOS's last word on the console, if it did not come back from what it went on to.
fn goes_on<'f, 'a>(facts: &'f RunIndex<'a>) -> Option<&'f Line<'a>> {
    let own = |h: &&Hit<'_>| h.on == On::Loader && h.means == Means::Firmware;
    let last = facts.hits.iter().rfind(own)?;
    let line = facts.lines.iter().find(|l| l.early && l.at == last.at && l.text == last.text)?;
    line.text.starts_with(GOES_ON).then_some(line)
}

/// When the BIOS went on to the ROM that loads the kernel which QEMU was given, by its last word on
/// the console: no boot loader spoke after it.
pub(crate) fn to_rom<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let line = goes_on(facts).filter(|l| l.text.starts_with(TO_ROM))?;
    let later = |h: &Hit<'_>| h.on == On::Loader && h.at > line.at;
    let stamp = Stamp { at: line.at, error: line.error, source: line.source };
    (!facts.hits.iter().any(later)).then_some(stamp)
}

/// First and last access to what is loaded, ignoring any that other accesses
/// separate from the last: firmware may probe sizes long before.
pub(crate) fn load_interval<'a>(facts: &RunIndex<'a>) -> Option<(Stamp<'a>, Stamp<'a>)> {
    // UEFI asks for a kernel's size and loads none where that is 0.
    if !loaded_compressed(facts) && !loaded_entry(facts) {
        let seen = |symbol| facts.first_reached(&[symbol]);
        return seen(IMAGE_LOADING).zip(seen(IMAGE_LOADED));
    }
    let mut interval: Option<(Stamp<'a>, Stamp<'a>)> = None;
    let mut broken = false;
    for seen in facts.seen {
        let EventKind::FwCfg { item, .. } = seen.what else { continue };
        if !LOADED.iter().any(|keys| keys.contains(item)) {
            broken = true;
            continue;
        }
        let stamp = Stamp::of(seen);
        interval = match interval {
            Some((first, _)) if !broken => Some((first, stamp)),
            _ => Some((stamp, stamp)),
        };
        broken = false;
    }
    interval
}

/// The firmware's log, cut into parts at the lines that begin one.
fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(reset) = anchors.get(Anchor::Reset) else { return };
    let phases = tree.root.children.iter().filter(|n| n.name == super::super::backbone::FIRMWARE);
    let Some((start, end)) = phases.map(|n| (n.start, n.end)).next() else { return };
    let inside = |h: &&Hit<'_>| of_firmware(h) && h.at < end;
    let parts: Vec<(&str, Ns, Ns, &'a str)> = facts
        .hits
        .iter()
        .filter(inside)
        .filter_map(|h| Some((part_name(h.means)?, h.at.max(start), h.error, h.source)))
        .collect();
    let stages = super::edk2::stages(facts, reset, end);
    // What a log, from the first moments on, says nothing of comes before it. A console's first line
    // comes at any time.
    let logs = facts.hits.iter().find(inside).is_some_and(|h| h.on == On::Firmware);
    let begin = parts.first().map(|first| ("bios:start", start, reset.error, first.3));
    let mut cuts = stages.unwrap_or_else(|| begin.filter(|_| logs).into_iter().collect());
    let told = cuts.last().map_or(start, |last| last.1);
    cuts.extend(parts.into_iter().filter(|part| part.1 >= told));
    super::edk2::menu_wait(facts, &mut cuts, end);
    network::loads(facts, &mut cuts);
    // The BIOS says where it enters an option ROM, which has begun to speak.
    let late = |kept: &Cut<'_>, next: &Cut<'_>| {
        next.0 == BOOTS && kept.0 == NETWORK && next.1 - kept.1 <= next.2.max(kept.2)
    };
    cuts.dedup_by(|next, kept| late(kept, next));
    cuts.dedup_by(|next, kept| next.0 == kept.0);
    for (index, (name, at, error, source)) in cuts.iter().enumerate() {
        let to = cuts.get(index + 1).map_or(end, |next| next.1);
        if *at < to {
            tree.place(Node { error: *error, ..Node::new(*name, *at, to, source) });
        }
    }
}

/// True for what firmware said, on its own port or on the console.
pub(crate) fn of_firmware(hit: &Hit<'_>) -> bool {
    match hit.on {
        On::Firmware => true,
        On::Loader if hit.means == Means::Firmware => true,
        On::Loader => {
            part_name(hit.means).is_some_and(|part| Identity::of(part).kind == Kind::Firmware)
        }
        On::Kernel => false,
    }
}

pub(crate) fn part_name(means: Means) -> Option<&'static str> {
    match means {
        Means::Part(name) | Means::FirstPart(name) | Means::PartUntilNextLine(name, _) => {
            Some(name)
        }
        Means::Begins(..)
        | Means::BeginsLast(..)
        | Means::Firmware
        | Means::Panic
        | Means::GoesDown
        | Means::PowerOff => None,
    }
}

fn loading<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some((first, last)) = load_interval(facts) else { return };
    // Never past the kernel's own start, whatever the clocks say.
    let limit = [Anchor::KernelFirst, Anchor::Decompress, Anchor::KernelEntry]
        .into_iter()
        .find_map(|a| anchors.get(a))
        .map_or(tree.root.end, |s| s.at);
    let reset = anchors.get(Anchor::Reset).map_or(0, |s| s.at);
    let (start, end) = (first.at.max(reset), last.at.min(limit));
    if start < end {
        let error = first.error.max(last.error);
        tree.root.carve(Node { error, ..Node::new("kernel:load", start, end, first.source) });
    }
}
