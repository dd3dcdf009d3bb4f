//! A running guest's clock against the host's.
//!
//! The guest's kernel keeps when it last read its clock ([`Ticks`]). What a read of ours finds was
//! before that read: so the host's TSC at the read, less the guest's TSC there, is never less than
//! the offset of the two. The least of many reads is off by what passed between the kernel's read
//! and ours. How much that is at most is known of one that was seen to come: it was after our read
//! before. The kernel reads its clock a moment before it stores what it read, and a vCPU may
//! lose its CPU in between; so one alone is not believed.

use crate::clock;
use std::time::Duration;
use vmeter_kernel_image::clocks::{Clocks, Ticks};
use vmeter_kernel_image::{Guest, Result};
use vmeter_model::Ns;

/// How long a clock is read for, ns: at least, until enough agree, and at most. A guest that idles
/// reads its clock when it has to: seconds may pass.
const LEAST: Ns = 150_000_000;
const UNTIL_AGREED: Ns = 1_500_000_000;
const MOST: Ns = 5_000_000_000;
/// Reads of the kernel's that are enough.
const ENOUGH: usize = 24;
/// How many of them have to agree.
const AGREE: usize = 3;
/// How often it is begun anew where the clock was changed meanwhile.
const TRIES: usize = 3;
/// Between two reads.
const APART: Duration = Duration::from_micros(60);

/// The guest's TSC against the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tied {
    /// The guest's TSC less the host's: not less than this.
    pub offset: i64,
    /// By how much more it can be, cycles: times by `offset` are so late at most. None if the guest
    /// was not seen to read its clock.
    pub late: Option<u64>,
    /// Reads that it is from.
    pub reads: usize,
}

/// A read of the kernel's: what the host's TSC less the guest's was at most, and, where it was seen to come, at least.
#[derive(Debug, Clone, Copy)]
struct Tick {
    most: i64,
    least: Option<i64>,
}

/// Reads when a guest last read its clock until enough is known; none of a guest that does not count the TSC, or
/// whose clock is changed all the while.
///
/// # Errors
/// When the kernel has no such symbols, or its RAM can't be read.
pub(super) fn watch(guest: &Guest<'_>) -> Result<Option<Tied>> {
    let mut clocks = Clocks::take_whole(guest, clock::monotonic())?;
    for _ in 0..TRIES {
        if !clocks.counts_tsc() {
            break;
        }
        let tied = watch_once(guest, &clocks)?;
        let now = Clocks::take_whole(guest, clock::monotonic())?;
        if now.is_scaled_as(&clocks) {
            return Ok(tied);
        }
        // It came to trust its TSC meanwhile, or calibrated it anew.
        clocks = now;
    }
    Ok(None)
}

fn watch_once(guest: &Guest<'_>, clocks: &Clocks) -> Result<Option<Tied>> {
    let ticks = Ticks::of(guest, clocks)?;
    let begun = clock::monotonic();
    let (mut seen, mut reads): (Vec<Tick>, usize) = (Vec::new(), 0);
    let mut before: Option<(u64, u64)> = None;
    loop {
        let from = clock::tsc();
        let read = ticks.read(guest, clocks)?;
        let to = clock::tsc();
        if let Some(guest_tsc) = read {
            reads += 1;
            let since = before.filter(|(last, _)| *last != guest_tsc).map(|(_, from)| from);
            if before.is_none_or(|(last, _)| last != guest_tsc) {
                let less = |host: u64| host.wrapping_sub(guest_tsc) as i64;
                seen.push(Tick { most: less(to), least: since.map(less) });
            }
            before = Some((guest_tsc, from));
        }
        let passed = clock::monotonic() - begun;
        let came = seen.iter().filter(|tick| tick.least.is_some()).count();
        let is_enough =
            came >= ENOUGH && passed >= LEAST || came >= AGREE && passed >= UNTIL_AGREED;
        if is_enough || passed >= MOST {
            return Ok(tied(&seen, reads, ticks.behind()));
        }
        std::thread::sleep(APART);
    }
}

fn tied(seen: &[Tick], reads: usize, behind: u64) -> Option<Tied> {
    let most = seen.iter().map(|tick| tick.most).min()?;
    // One that came later than it can have been published too late.
    let mut least: Vec<i64> =
        seen.iter().filter_map(|tick| tick.least).filter(|least| *least <= most).collect();
    least.sort_unstable_by(|a, b| b.cmp(a));
    let least = least.get(AGREE - 1).or(least.last());
    let late = least.map(|least| most.abs_diff(*least).saturating_add(behind));
    Some(Tied { offset: most.checked_neg()?, late, reads })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(most: i64, least: i64) -> Tick {
        Tick { most, least: Some(least) }
    }

    #[test]
    fn the_least_offset_is_late_by_what_three_ticks_allow() {
        assert_eq!(tied(&[], 0, 0), None);
        let idle = tied(&[Tick { most: 9, least: None }], 1, 0);
        assert_eq!(
            idle,
            Some(Tied { offset: -9, late: None, reads: 1 }),
            "it was not seen to come"
        );
        // The true offset is 1000; one tick was published 500 cycles after its clock was read.
        let seen = [tick(1010, 990), tick(1500, 1490), tick(1030, 970), tick(1020, 980)];
        assert_eq!(tied(&seen, 7, 3), Some(Tied { offset: -1010, late: Some(43), reads: 7 }));
        assert_eq!(tied(&seen[..1], 2, 0), Some(Tied { offset: -1010, late: Some(20), reads: 2 }));
        assert_eq!(tied(&[tick(i64::MIN, i64::MIN)], 1, 0), None);
    }
}
