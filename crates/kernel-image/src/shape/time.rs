//! The page that programs read the time from (`vdso_data`, lib/vdso): which cycles of the TSC were
//! which `CLOCK_MONOTONIC` at the last tick.
//!
//! It begins with `seq` and `clock_mode`, `cycle_last`, since 6.10 `max_cycles`, `mask`, `mult` and
//! `shift`, then the time of each clock, in seconds and in ns shifted left. On x86-64 it lies at
//! the begin of a page, or 128 bytes after it. The log's clock is tied to it by what the kernel
//! says once it trusts its TSC: "sched_clock: Marking stable (MONOTONIC, GTOD_OFFSET)->(RAW, OFFSET)".

use crate::bytes::{u32_at, u64_at};
use crate::clocks::{Clocks, Scale};
use crate::printk::PrintkRecord;

/// Where it is in its page.
const PLACES: [usize; 2] = [0, 128];
/// `VDSO_CLOCKMODE_TSC`.
const TSC: u32 = 1;
/// Places of clocks in `basetime`: `CLOCK_MONOTONIC`, and `CLOCK_BOOTTIME`, which is the same in
/// a guest that never slept.
const MONOTONIC: usize = 1;
const BOOTTIME: usize = 7;
const NS: u64 = 1_000_000_000;
/// A guest that runs for longer is not one that booted just now, s.
const MAX_SECONDS: u64 = 1 << 24;

/// What such a page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    cycle_last: u64,
    monotonic_ns: u64,
    scale: Scale,
}

impl Time {
    /// Of a page that is one.
    pub(super) fn at(page: &[u8]) -> Option<Time> {
        PLACES.into_iter().find_map(|place| {
            let data = page.get(place..)?;
            // With and without `max_cycles`.
            [24, 16].into_iter().find_map(|mask| Self::of(data, mask))
        })
    }

    fn of(data: &[u8], mask: usize) -> Option<Time> {
        let (mult, shift) = (u32_at(data, mask + 8)?, u32_at(data, mask + 12)?);
        let settled = u32_at(data, 0)? & 1 == 0 && u32_at(data, 0)? > 0;
        let right = settled && u32_at(data, 4)? == TSC && u64_at(data, mask)? == u64::MAX;
        if !right || mult == 0 || !(8..=32).contains(&shift) {
            return None;
        }
        let clock = |which: usize| {
            let at = mask + 16 + which * 16;
            let (seconds, shifted) = (u64_at(data, at)?, u64_at(data, at + 8)?);
            let fraction = shifted >> shift;
            (seconds < MAX_SECONDS && fraction < NS).then_some(seconds * NS + fraction)
        };
        let (monotonic_ns, boot) = (clock(MONOTONIC)?, clock(BOOTTIME)?);
        let cycle_last = u64_at(data, 8)?;
        let scale = Scale { mult, shift };
        (monotonic_ns == boot && cycle_last > 0).then_some(Time { cycle_last, monotonic_ns, scale })
    }
}

/// The clocks of a log, by the page and by what it says itself. None where the pages disagree, or
/// the kernel did not come to trust its TSC.
pub(super) fn clocks(times: &[Time], log: &[PrintkRecord]) -> Option<Clocks> {
    let (time, others) = times.split_first()?;
    if others.iter().any(|other| other != time) {
        return None;
    }
    let (gtod_offset, sched_clock_offset) = log.iter().rev().find_map(stable)?;
    let log_ns = time.monotonic_ns.checked_add_signed(gtod_offset)?;
    let raw = log_ns.checked_add_signed(sched_clock_offset.checked_neg()?)?;
    Some(Clocks {
        clocksource: "tsc".into(),
        cycle_last: time.cycle_last,
        monotonic_ns: time.monotonic_ns,
        timekeeper: time.scale,
        sched_clock: time.scale,
        sched_clock_add: raw.wrapping_sub(time.scale.ns(time.cycle_last)),
        sched_clock_offset,
        gtod_offset,
        read_ns: 0,
        pvclock: None,
    })
}

/// `__gtod_offset` and `__sched_clock_offset` as the kernel said them (kernel/sched/clock.c).
fn stable(record: &PrintkRecord) -> Option<(i64, i64)> {
    let rest = record.text.strip_prefix("sched_clock: Marking stable (")?;
    let (gtod, raw) = rest.strip_suffix(')')?.split_once(")->(")?;
    let second = |pair: &str| pair.split_once(", ")?.1.parse().ok();
    (record.by_kernel).then_some((second(gtod)?, second(raw)?))
}
