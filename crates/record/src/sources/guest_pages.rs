//! When a compressed kernel was unpacked: by when the pages of the guest's RAM came into being, with
//! nothing added to the guest or its VMM.
//!
//! A page that a guest never touched is not there. A decompressor fills the place of the kernel from
//! its begin to its end, and nothing else runs meanwhile. Where that place is stands in the guest's RAM
//! once the kernel runs. What was touched before tells less: GRUB moves what it has read through
//! memory as the decompressor moves itself.
//!
//! `/proc/PID/pagemap` says which pages are there (Documentation/admin-guide/mm/pagemap.rst). One page
//! of each stride is looked at, a MiB or a 2048th of the RAM, until it is there. Looks come in intervals
//! of a 64th of the time since the exec, from 4 to 10 ms (after half a minute 50 ms), and take no more than a 16th of it.

use super::read_bounded;
use crate::guest_ram::GuestKernel;
use crate::looking::Looking;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use vmeter_base::clock;
use vmeter_machine::launch::{Mapping, Tracee};
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, Ns, What};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-pages";

/// A line for each look that found pages: when it began and when the one before ended
/// (`CLOCK_MONOTONIC`, ns), and the pages, `STRIDE:ADDRESS` of the VMM (hexadecimal).
const FILE: &str = "guest-pages.txt";

/// Time between two looks: this part of the time since the exec, within these bounds.
const PART: Ns = 64;
const SHORTEST: Ns = 4_000_000;
const LONGEST: Ns = 10_000_000;
/// A boot loader's menu is over after so long, ns; later looks are so far apart.
const SOON: Ns = 30_000_000_000;
const LATER: Ns = 50_000_000;
/// A look may take this part of the time between two.
const SHARE: Ns = 16;
/// Mappings are read once in so many looks.
const MAPPED: u32 = 16;
/// So long after the exec, ns.
const MOST_NS: Ns = 120_000_000_000;
/// RAM that holds a compressed kernel and what it becomes is larger.
const SMALLEST: u64 = 64 << 20;
/// Pages that are looked at of a mapping, and how far apart they are at least.
const PAGES: u64 = 2048;
const STRIDE: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Of an entry of pagemap: the page is there, or in swap.
const THERE: u64 = 3 << 62;
/// Pages in a row that are a kernel at least.
const ROW: usize = 4;
/// Longest that nothing of it comes, ns: a busy host.
const STILL: Ns = 500_000_000;

/// Where a compressed kernel was unpacked to.
pub struct GuestPages;

impl Recorder for GuestPages {
    type Parameters = Place;
    type Raw = (Vec<Page>, Option<u64>);
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let kernel = GuestKernel::of(context)?;
        let path = context.dir.join(FILE);
        Some(Box::new(Recording {
            kernel,
            is_seen: false,
            path,
            looking: None,
            text: None,
            place: None,
        }) as _)
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        place: Place,
    ) -> Result<Self::Raw, SourceError> {
        let text = read_bounded(dir, source, 0)?;
        Ok((parse(&String::from_utf8_lossy(&text)), place.kernel))
    }

    fn decode(
        &self,
        (pages, kernel): &Self::Raw,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let Some(found) = kernel.and_then(|kernel| unpacked(pages, kernel)) else {
            return Ok(Vec::new());
        };
        let event = |(symbol, page): (&str, &Page)| Event {
            at: page.at.saturating_sub(saved.run.exec_ns),
            error_ns: page.at.saturating_sub(page.before),
            source: NAME.into(),
            insns: None,
            what: What::Reached { symbol: symbol.into() },
        };
        Ok([("unpacking", &found.first), ("unpacked", &found.last)].map(event).into())
    }
}

/// What was known when the run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Address of the kernel's first byte, in the VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernel: Option<u64>,
}

/// A page that came into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// When a look found it, and when the one before had ended, ns.
    at: Ns,
    before: Ns,
    /// How far apart the pages are that were looked at, bytes.
    stride: u64,
    address: u64,
}

/// The first and the last page of what was unpacked, as far as that was not there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unpacked {
    first: Page,
    last: Page,
}

/// The unpacking of the kernel at an address: pages that come from its begin to its end. None where all
/// of it came at once, which is how a VMM or a boot loader puts a kernel there.
fn unpacked(pages: &[Page], kernel: u64) -> Option<Unpacked> {
    let by_address: BTreeMap<u64, &Page> = pages.iter().map(|page| (page.address, page)).collect();
    let first = by_address.range(kernel..).next().map(|(_, page)| **page)?;
    if first.address - kernel >= first.stride {
        return None;
    }
    let (mut last, mut row) = (first, 1);
    while let Some(next) = by_address.get(&last.address.checked_add(last.stride)?) {
        if next.at < last.at || next.before.saturating_sub(last.at) > STILL {
            break;
        }
        (last, row) = (**next, row + 1);
    }
    (row >= ROW && last.before > first.at).then_some(Unpacked { first, last })
}

fn parse(text: &str) -> Vec<Page> {
    let pages_of = |line: &str| -> Option<Vec<Page>> {
        let mut words = line.split(' ');
        let (at, before) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let page = |word: &str| {
            let (stride, address) = word.split_once(':')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(Page { at, before, stride: number(stride)?, address: number(address)? })
        };
        Some(words.filter_map(page).collect())
    };
    text.lines()
        .filter_map(pages_of)
        .flatten()
        .filter(|p| p.before <= p.at && p.stride > 0)
        .collect()
}

struct Recording {
    kernel: GuestKernel,
    is_seen: bool,
    path: PathBuf,
    looking: Option<Looking>,
    text: Option<String>,
    place: Option<u64>,
}

impl Recording {
    /// Ends the looks at the process before this one, of which nothing is kept.
    fn end(&mut self) -> Option<String> {
        self.looking.take()?.end()
    }
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        // The plugin sees the decompressor's and the kernel's first instruction.
        self.is_seen = plan.injected.iter().any(|added| added.starts_with("-plugin"));
        // Without its symbols the kernel is not found at the end, and nothing is said.
        let _ = self.kernel.open();
        Ok(())
    }

    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.end();
        if self.is_seen {
            return Ok(());
        }
        let tracee = tracee.clone();
        let mut looks = Looks::default();
        let look = move |text: &mut String, since: Ns| {
            let took = looks.look(&tracee, text)?;
            let wait = match since + took {
                since if since > MOST_NS => return None,
                since if since < SOON => (since / PART).clamp(SHORTEST, LONGEST),
                _ => LATER,
            };
            Some(wait.max(took * SHARE))
        };
        let looking = Looking::start(NAME, String::new(), look);
        self.looking =
            Some(looking.map_err(|error| SourceError::Io { path: self.path.clone(), error })?);
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.text = self.end();
        if self.text.as_ref().is_some_and(|text| !text.is_empty()) {
            // A guest whose kernel is not found was not unpacked where it can be told.
            self.place = self.kernel.host_address(tracee).ok().flatten();
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let ended = self.end();
        let Some(text) = self.text.take().or(ended).filter(|_| self.place.is_some()) else {
            return Ok(None);
        };
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let place = Place { kernel: self.place };
        let clock = "CLOCK_MONOTONIC at each look";
        Ok(Some(recorder::record::<GuestPages>(&[FILE], clock, SHORTEST, &place)))
    }
}

/// The looks at one process.
#[derive(Default)]
struct Looks {
    /// When the last one ended.
    last: Ns,
    /// What can be RAM: from, to.
    ram: Vec<(u64, u64)>,
    /// Looks since that was read.
    since: u32,
    there: BTreeSet<u64>,
}

impl Looks {
    /// Adds a line for what is new. How long that took, ns; none if the process is gone.
    fn look(&mut self, tracee: &Tracee, text: &mut String) -> Option<Ns> {
        let at = clock::monotonic();
        self.since += 1;
        if self.ram.is_empty() || self.since >= MAPPED {
            let mappings = tracee.mappings().ok().filter(|all| !all.is_empty())?;
            let is_ram =
                |m: &&Mapping| m.permissions.starts_with("rw-") && m.end - m.start >= SMALLEST;
            self.ram = mappings.iter().filter(is_ram).map(|m| (m.start, m.end)).collect();
            self.since = 0;
        }
        let pagemap = File::open(format!("/proc/{}/pagemap", tracee.pid)).ok()?;
        let mut found = String::new();
        for (start, end) in &self.ram {
            let stride = ((end - start) / PAGES).next_multiple_of(STRIDE);
            for address in (*start..*end).step_by(stride as usize) {
                let mut entry = [0; 8];
                if self.there.contains(&address)
                    || pagemap.read_exact_at(&mut entry, address / PAGE * 8).is_err()
                    || u64::from_ne_bytes(entry) & THERE == 0
                {
                    continue;
                }
                self.there.insert(address);
                let _ = write!(found, " {stride:x}:{address:x}");
            }
        }
        if !found.is_empty() {
            let _ = writeln!(text, "{at} {}{found}", self.last);
        }
        self.last = clock::monotonic();
        Some(self.last - at)
    }
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

    #[test]
    fn what_is_filled_from_its_begin_to_its_end_was_unpacked() {
        let text = row(1..14, 200, 1) + &row((52..66).rev(), 300, 5) + &row(216..268, 400, 6);
        let found = unpacked(&parse(&text), 216 * MIB).expect("it was unpacked");
        assert_eq!((found.first.before, found.first.at), (400_000_000, 406_000_000));
        assert_eq!(found.last.at, (400 + 52 * 6) * 1_000_000);
        // Another place, downwards, or too little.
        for kernel in [300, 52, 265] {
            assert_eq!(unpacked(&parse(&text), kernel * MIB), None, "{kernel}");
        }
        // What came long after is something else.
        let later = row(216..230, 400, 6) + &row(230..268, 2_400, 6);
        let found = unpacked(&parse(&later), 216 * MIB).expect("it was unpacked");
        assert_eq!(found.last.address, 229 * MIB);
    }

    #[test]
    fn what_was_put_there_at_once_was_not_unpacked() {
        let at_once: String = (16..60).map(|mib| format!(" {MIB:x}:{:x}", mib * MIB)).collect();
        let text = row((62..66).rev(), 300, 5) + "400000000 390000000" + &at_once + "\n";
        assert_eq!(unpacked(&parse(&text), 16 * MIB), None);
        assert_eq!(parse("x y\n1 2 3\n5 9 1:1\n9 5 0:1 g:1\n"), []);
    }

    #[test]
    fn times_of_a_damaged_recording_are_no_panic() {
        let text = "2 1 100000:100000\n9 -9223372036854775808 100000:200000\n";
        assert_eq!(unpacked(&parse(text), MIB), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(-?[0-9]{1,19} -?[0-9]{1,19}( [0-9a-f]{1,16}:[0-9a-f]{1,16}){0,6}\n){0,8}", kernel: u64) {
            let _ = unpacked(&parse(&text), kernel);
        }
    }
}
