//! What writes of RAM tell of a kernel's way into it.
//!
//! | what | is told by |
//! |---|---|
//! | `image-loading`, `image-loaded` | QEMU's option ROM put the image and the initrd where `boot_params` say; else the first and the last places where words of the kernel's file were, as far apart as in the file |
//! | `image-moving` | the image moved itself to the end of its space, downwards, before it unpacked the kernel: the last writes there before the unpacking. A boot loader that moves what it read may have written there before |
//! | `unpacking`, `unpacked` | the place of the kernel came into being from its begin to its end |
//! | `kernel-started` | the word that `start_kernel` writes first of all to the end of its stack (`set_task_stack_end_magic`, include/uapi/linux/magic.h), which is the begin of the kernel's data, on a boundary of 2 MiB |

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::Ns;

/// The word at the end of a kernel's stacks.
pub(super) const STACK_END_MAGIC: u64 = 0x57ac_6e9d;
/// Least bytes of what was unpacked, in so many places.
const KERNEL: u64 = 4 << 20;
const ROW: usize = 3;
/// Longest that nothing of it comes, and that a move takes, ns; or so many times as long as one place
/// takes else: a busy host gives its guests a CPU now and then only.
const STILL: Ns = 500_000_000;
const TIMES: Ns = 4;
/// Least places of what was moved or loaded.
const LEAST: usize = 2;

/// Addresses in [`Place::of`].
pub(super) const PLACES: usize = 8;

/// What was known when the run ended: addresses in the VMM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's first byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernel: Option<u64>,
    /// The end of its first stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stack: Option<u64>,
    /// Where its image moved itself: from, to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved: Option<(u64, u64)>,
    /// Where QEMU's ROM loaded image and initrd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    initrd: Option<(u64, u64)>,
    /// Words of the kernel's file that were seen in RAM, each with its place in the file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    words: BTreeMap<u64, u64>,
}

impl Place {
    /// Adds the words of the kernel's file that a look saw, of those that are in it once.
    pub(super) fn add_words(&mut self, pages: &[Page], file: &[u8]) {
        let seen: BTreeSet<u64> = pages.iter().filter_map(|page| page.word).collect();
        let mut often = BTreeSet::new();
        for (index, bytes) in file.chunks_exact(8).enumerate() {
            let word = bytes.try_into().map_or(0, u64::from_le_bytes);
            if seen.contains(&word) && self.words.insert(word, index as u64 * 8).is_some() {
                often.insert(word);
            }
        }
        self.words.retain(|word, _| !often.contains(word));
    }

    /// Of the addresses that were found; none without a kernel.
    pub(super) fn of(found: [Option<u64>; PLACES]) -> Option<Self> {
        let [kernel, stack, ends @ ..] = found;
        let pair = |at: usize| Some((ends[at]?, ends[at + 1]?));
        kernel?;
        let words = BTreeMap::new();
        Some(Place { kernel, stack, moved: pair(0), image: pair(2), initrd: pair(4), words })
    }
}

/// A place that a look found there, or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// When a look found it, and when the one before had ended, ns.
    at: Ns,
    before: Ns,
    /// How far apart the places are that were looked at, bytes.
    stride: u64,
    address: u64,
    /// What is there now; none where only that it is there was seen.
    word: Option<u64>,
}

/// When something was seen, and how far off that is, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub at: Ns,
    pub error: Ns,
}

impl Seen {
    fn of(page: &Page) -> Self {
        Seen { at: page.at, error: page.at.saturating_sub(page.before) }
    }
}

pub(super) fn parse(text: &str) -> Vec<Page> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let pages_of = |line: &str| -> Option<Vec<Page>> {
        let mut words = line.split(' ');
        let (at, before) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let page = |word: &str| {
            let (stride, place) = word.split_once(':')?;
            let (address, word) = match place.split_once('=') {
                Some((address, word)) => (address, Some(number(word)?)),
                None => (place, None),
            };
            Some(Page { at, before, stride: number(stride)?, address: number(address)?, word })
        };
        Some(words.filter_map(page).collect())
    };
    text.lines()
        .filter_map(pages_of)
        .flatten()
        .filter(|p| p.before <= p.at && p.stride > 0)
        .collect()
}

/// What the writes tell, in order of time.
pub(super) fn told(pages: &[Page], place: &Place) -> Vec<(&'static str, Seen)> {
    let unpacked = place.kernel.and_then(|kernel| unpacked(pages, kernel));
    let begun = unpacked.map(|(first, _)| first.at);
    let moved = place.moved.zip(begun).and_then(|(to, begun)| moved(pages, to, begun));
    let by_rom = moved.and_then(|moved| loaded(pages, place, moved.at));
    let until = moved.map(|moved| moved.at).or(begun);
    let loaded = by_rom.or_else(|| copied(pages, &place.words, until?));
    let mut told = Vec::new();
    if let Some((first, last)) = loaded {
        told.extend([("image-loading", first), ("image-loaded", last)]);
    }
    told.extend(moved.map(|moved| ("image-moving", moved)));
    if let Some((first, last)) = &unpacked {
        told.extend([("unpacking", Seen::of(first)), ("unpacked", Seen::of(last))]);
    }
    told.extend(started(pages, place).map(|page| ("kernel-started", Seen::of(page))));
    told
}

/// When kernels wrote their first word: the first that did, and the one that ran last.
fn started<'p>(pages: &'p [Page], place: &Place) -> impl Iterator<Item = &'p Page> {
    let marks = || pages.iter().filter(|page| page.word == Some(STACK_END_MAGIC));
    let stack = place.stack;
    let last = marks().rfind(move |page| Some(page.address) == stack);
    let first = marks().next();
    first.into_iter().chain(last.filter(|last| Some(*last) != first))
}

/// The unpacking of the kernel at an address: places that come from its begin to its end, the first and
/// the last of those that were not there before. None where all of it came at once, which is how a VMM
/// or a boot loader puts a kernel there.
fn unpacked(pages: &[Page], kernel: u64) -> Option<(Page, Page)> {
    let mut by_address: BTreeMap<u64, &Page> = BTreeMap::new();
    for page in pages {
        by_address.entry(page.address).or_insert(page);
    }
    let first = by_address.range(kernel..).next().map(|(_, page)| **page)?;
    if first.address - kernel >= first.stride {
        return None;
    }
    let mut row = vec![first];
    let mut last = first;
    while let Some(next) = by_address.get(&last.address.checked_add(last.stride)?) {
        if next.at < last.at {
            break;
        }
        last = **next;
        row.push(last);
    }
    row.truncate(goes_on(&row));
    let (last, row) = (*row.last()?, row.len());
    let long = row >= ROW && last.address - first.address >= KERNEL - first.stride.min(KERNEL);
    (long && last.before > first.at).then_some((first, last))
}

/// How many places of a row come one after the other, with no pause in between.
fn goes_on(row: &[Page]) -> usize {
    let pauses = || row.windows(2).map(|pair| pair[1].before.saturating_sub(pair[0].at));
    let longest = pauses().max().unwrap_or(0);
    let others = pauses().sum::<Ns>().saturating_sub(longest);
    let usual = others / Ns::try_from(row.len().saturating_sub(2).max(1)).unwrap_or(1);
    let most = STILL.max(TIMES.saturating_mul(usual));
    pauses().position(|pause| pause > most).map_or(row.len(), |at| at + 1)
}

/// The last writes of all places of a part up to a moment, in order of addresses. None where one was
/// not written by then, or where they are too few.
fn last_writes(pages: &[Page], (from, to): (u64, u64), until: Ns) -> Option<Vec<&Page>> {
    let mut last: BTreeMap<u64, &Page> = BTreeMap::new();
    let inside = |page: &&Page| (from..to).contains(&page.address);
    for page in pages.iter().filter(inside).filter(|page| page.at <= until && page.word.is_some()) {
        last.insert(page.address, page);
    }
    let (address, page) = last.first_key_value()?;
    let begin = address - (address - from) / page.stride * page.stride;
    let all = (to - begin).div_ceil(page.stride) as usize;
    (all >= LEAST && last.len() == all).then(|| last.into_values().collect())
}

/// When an image began to move itself: the last writes there before the unpacking began, from the end
/// to the begin.
fn moved(pages: &[Page], to: (u64, u64), until: Ns) -> Option<Seen> {
    let writes = last_writes(pages, to, until)?;
    let (first, last) = (writes.last()?, writes.first()?);
    let downwards = writes.windows(2).all(|pair| pair[1].at <= pair[0].at);
    let took = last.at.saturating_sub(first.at);
    // What is above was moved right before.
    let error = first.at.saturating_sub(first.before).saturating_add(took);
    (downwards && took <= STILL).then_some(Seen { at: first.before, error })
}

/// When QEMU's ROM began to load image and initrd, and when the last of both was there.
fn loaded(pages: &[Page], place: &Place, until: Ns) -> Option<(Seen, Seen)> {
    let mut writes = last_writes(pages, place.image?, until)?;
    // One of few bytes need not be in any place.
    writes.extend(
        place.initrd.and_then(|initrd| last_writes(pages, initrd, until)).unwrap_or_default(),
    );
    let first = writes.iter().min_by_key(|page| page.at)?;
    let last = writes.iter().max_by_key(|page| page.at)?;
    Some((Seen::of(first), Seen::of(last)))
}

/// When words of the kernel's file came into RAM, as far apart as they are in the file: the first and
/// the last of the copy that came last, which firmware made of its own. Its first instruction ran at
/// some time between that and `until`.
fn copied(pages: &[Page], words: &BTreeMap<u64, u64>, until: Ns) -> Option<(Seen, Seen)> {
    let mut copies: BTreeMap<u64, Vec<&Page>> = BTreeMap::new();
    for page in pages.iter().filter(|page| page.at <= until) {
        let offset = page.word.and_then(|word| words.get(&word));
        if let Some(begin) = offset.and_then(|offset| page.address.checked_sub(*offset)) {
            copies.entry(begin).or_default().push(page);
        }
    }
    copies.retain(|_, pages| pages.iter().any(|page| page.address != pages[0].address));
    let copy = copies.values().max_by_key(|pages| pages.last().map(|page| page.at))?;
    let (first, last) = (copy.first()?, copy.last()?);
    let error = until.saturating_sub(last.before) / 2;
    Some((Seen::of(first), Seen { at: last.before.saturating_add(error), error }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// A page a MiB, each found `step` ms after the one before.
    fn row(mib: impl Iterator<Item = u64>, from_ms: Ns, step: Ns) -> String {
        let at = |look: usize| (from_ms + step * look as Ns) * 1_000_000;
        let line = |(look, mib): (usize, u64)| {
            format!("{} {} {MIB:x}:{:x}\n", at(look + 1), at(look), mib * MIB)
        };
        mib.enumerate().map(line).collect()
    }

    /// The same, with a word that is another each time.
    fn words(mib: impl Iterator<Item = u64>, from_ms: Ns, step: Ns) -> String {
        let text = row(mib, from_ms, step);
        text.lines()
            .enumerate()
            .map(|(n, line)| format!("{line}={:x}\n", from_ms + n as Ns))
            .collect()
    }

    fn names(told: &[(&'static str, Seen)]) -> Vec<&'static str> {
        told.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn what_is_filled_from_its_begin_to_its_end_was_unpacked() {
        let text = row(1..14, 200, 1) + &row((52..66).rev(), 300, 5) + &row(216..268, 400, 6);
        let (first, last) = unpacked(&parse(&text), 216 * MIB).expect("it was unpacked");
        assert_eq!((first.before, first.at), (400_000_000, 406_000_000));
        assert_eq!(last.at, (400 + 52 * 6) * 1_000_000);
        // Another place, downwards, or too little.
        for kernel in [300, 52, 266] {
            assert_eq!(unpacked(&parse(&text), kernel * MIB), None, "{kernel}");
        }
        // What came long after is something else.
        let later = row(216..230, 400, 6) + &row(230..268, 2_400, 6);
        let (_, last) = unpacked(&parse(&later), 216 * MIB).expect("it was unpacked");
        assert_eq!(last.address, 229 * MIB);
        // On a busy host all of it takes longer, now this place and now that.
        let busy: String = (216..268)
            .map(|mib| {
                let at = 400 + 250 * (mib - 216) + if mib < 230 { 0 } else { 700 };
                format!("{at}000000 {}000000 {MIB:x}:{:x}\n", at - 10, mib * MIB)
            })
            .collect();
        let (_, last) = unpacked(&parse(&busy), 216 * MIB).expect("it was unpacked");
        assert_eq!(last.address, 267 * MIB);
    }

    #[test]
    fn what_was_put_there_at_once_was_not_unpacked() {
        let at_once: String = (16..60).map(|mib| format!(" {MIB:x}:{:x}", mib * MIB)).collect();
        let text = row((62..66).rev(), 300, 5) + "400000000 390000000" + &at_once + "\n";
        assert_eq!(unpacked(&parse(&text), 16 * MIB), None);
        assert_eq!(parse("x y\n1 2 3\n5 9 1:1\n9 5 0:1 g:1\n"), []);
    }

    /// GRUB moved 52 MiB there, downwards, before the image moved itself.
    #[test]
    fn an_image_moves_itself_last_of_all() {
        let place = Place {
            kernel: Some(216 * MIB),
            moved: Some((55 * MIB, 65 * MIB)),
            image: Some((MIB, 14 * MIB)),
            ..Place::default()
        };
        let loaded = words(1..14, 100, 2);
        let by_grub = words((16..68).rev(), 200, 20);
        let own = words((53..67).rev(), 2_000, 3);
        let unpacks = row(216..268, 2_100, 6);
        let text = loaded.clone() + &by_grub + &own + &unpacks;
        let told = told(&parse(&text), &place);
        let all = ["image-loading", "image-loaded", "image-moving", "unpacking", "unpacked"];
        assert_eq!(names(&told), all);
        let moving = told[2].1;
        assert!((2_000..2_010).contains(&(moving.at / 1_000_000)), "{moving:?}");
        assert!((3..=40).contains(&(moving.error / 1_000_000)), "{moving:?}");
        // Upwards, too slow, or not all of it.
        for text in [
            words(53..67, 2_000, 3),
            words((53..67).rev(), 2_000, 60),
            words((60..67).rev(), 2_000, 3),
        ] {
            let later = row(216..268, 3_000, 6);
            let told = super::told(&parse(&(loaded.clone() + &text + &later)), &place);
            assert_eq!(names(&told), ["unpacking", "unpacked"], "{text}");
        }
    }

    /// UEFI firmware reads the file into one place and copies it to another.
    #[test]
    fn an_image_that_firmware_loaded_shows_by_its_words() {
        let file: Vec<u8> = (0u64..4 << 17).flat_map(|n| (n / 2 + 7).to_le_bytes()).collect();
        let mut once = file.clone();
        for mib in 0..4 {
            let at = (mib << 20) + 64;
            once[at..at + 8].copy_from_slice(&(0xabcd_0000 + mib as u64).to_le_bytes());
        }
        let line = |ms: u64, mib: u64, word: u64| {
            format!("{ms}000000 {}000000 {MIB:x}:{:x}={word:x}\n", ms - 5, mib * MIB)
        };
        let copy = |ms: u64, to: u64| -> String {
            (0..4).map(|mib| line(ms + mib * 5, to + mib, 0xabcd_0000 + mib)).collect()
        };
        let text = copy(1_000, 20) + &copy(1_500, 40) + &row(216..268, 2_000, 6);
        let pages = parse(&text);
        let mut place = Place { kernel: Some(216 * MIB), ..Place::default() };
        place.add_words(&pages, &once);
        assert_eq!(place.words.len(), 4);
        let told = told(&pages, &place);
        assert_eq!(names(&told), ["image-loading", "image-loaded", "unpacking", "unpacked"]);
        // Of two copies the one that ran counts.
        let at = |n: usize| (told[n].1.at / 1_000_000, told[n].1.error / 1_000_000);
        // It may have run its first instruction up to the unpacking.
        assert_eq!((at(0), at(1)), ((1_500, 5), ((1_510 + 2_006) / 2, (2_006 - 1_510) / 2)));
        // Words that are in the file twice say nothing, nor does one alone.
        let twice = line(1_000, 20, 7) + &line(1_005, 21, 8);
        let mut other = Place::default();
        other.add_words(&parse(&(twice + &line(1_010, 22, 0xabcd_0001))), &once);
        assert_eq!(other.words.len(), 1);
        assert_eq!(copied(&pages, &other.words, Ns::MAX), None);
    }

    #[test]
    fn a_kernel_starts_with_its_stack() {
        let mark = |ms: Ns, mib: u64| {
            format!("{0}000000 {1}000000 {MIB:x}:{2:x}=57ac6e9d\n", ms, ms - 5, mib * MIB)
        };
        let text = mark(900, 240) + &mark(1_500, 300) + &mark(4_000, 120);
        let second = Place { kernel: Some(90 * MIB), stack: Some(120 * MIB), ..Place::default() };
        let told = |place: &Place| -> Vec<Ns> {
            super::told(&parse(&text), place).iter().map(|(_, seen)| seen.at / 1_000_000).collect()
        };
        // What is on such a boundary later may be any thread's, if it is not this kernel's first.
        assert_eq!(told(&second), [900, 4_000]);
        assert_eq!(told(&Place { stack: Some(240 * MIB), ..second.clone() }), [900]);
    }

    #[test]
    fn times_of_a_damaged_recording_are_no_panic() {
        let text = "2 1 100000:100000\n9 -9223372036854775808 100000:200000\n";
        assert_eq!(unpacked(&parse(text), MIB), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(
            text in "(-?[0-9]{1,19} -?[0-9]{1,19}( [0-9a-f]{1,16}:[0-9a-f]{1,16}(=(57ac6e9d|[0-9a-f]{1,16}))?){0,6}\n){0,8}",
            kernel: u64,
            part: (u64, u64),
        ) {
            let part = Some((part.0.min(part.1), part.0.max(part.1)));
            let words = [(kernel, 8), (part.map_or(0, |p| p.0), 16)].into();
            let place = Place { kernel: Some(kernel), stack: None, moved: part, image: part, initrd: part, words };
            let _ = told(&parse(&text), &place);
        }
    }
}
