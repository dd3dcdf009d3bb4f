//! The clocks that stamp a kernel's log, as its RAM had them.
//!
//! A record is stamped by `local_clock()` (kernel/sched/clock.c). Once the kernel trusts its
//! TSC that is the TSC itself, scaled (`cyc2ns` of arch/x86/kernel/tsc.c) and moved by
//! `__sched_clock_offset`; before, it follows the time of day, by `__gtod_offset`. The
//! timekeeper (kernel/time/timekeeping.c) has the clocksource's cycles at the last tick: so RAM
//! says what the log would have been stamped with at a known TSC. It is in `tk_core`, and from
//! 6.17 on in the first element of the array `timekeeper_data`, before those of auxiliary clocks.
//!
//! Under KVM a guest may count what its host says instead (`kvm-clock`,
//! arch/x86/kernel/kvmclock.c): the host has written which TSC is which time into a page of it
//! (`struct pvclock_vcpu_time_info` of asm/pvclock-abi.h, of CPU 0 at `hv_clock_boot`), and
//! `sched_clock` is that time less `kvm_sched_clock_offset`.

use crate::bytes::u64_at;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::info::KernelInfo;
use serde::{Deserialize, Serialize};

/// Where the timekeeper is, by the names that it has had.
const TIMEKEEPERS: [&str; 2] = ["tk_core", "timekeeper_data"];
/// The place of `struct timekeeper` in there, after a sequence count: before 6.13 the structure
/// around it has no name, so that BTF does not tell.
const TIMEKEEPER: u64 = 8;
/// The clocksource whose cycles are the host's ns.
const KVM_CLOCK: &str = "kvm-clock";
/// Longest name of a clocksource, bytes.
const MAX_NAME: usize = 32;
/// How often clocks are read again that were written meanwhile.
const TRIES: usize = 64;
/// Largest shift of a scale.
const MAX_SHIFT: u32 = 63;

/// A scale from cycles to ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Multiplier.
    pub mult: u32,
    /// By which what was multiplied is shifted right.
    pub shift: u32,
}

impl Scale {
    /// ns of so many cycles, rounded down.
    pub fn ns(self, cycles: u64) -> u64 {
        let ns = (u128::from(cycles) * u128::from(self.mult)) >> self.shift.min(MAX_SHIFT);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// ns of a cycle.
    pub fn rate(self) -> f64 {
        f64::from(self.mult) / 2f64.powi(self.shift.min(MAX_SHIFT) as i32)
    }
}

/// A kernel's clocks at its last tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Name of the clocksource: `tsc`, `tsc-early`, `hpet`, `kvm-clock` …
    pub clocksource: String,
    /// Its cycles at the last tick.
    pub cycle_last: u64,
    /// `CLOCK_MONOTONIC` then, ns.
    pub monotonic_ns: u64,
    /// The timekeeper's scale.
    pub timekeeper: Scale,
    /// The scale of `sched_clock`, of CPU 0.
    pub sched_clock: Scale,
    /// What is added to it, ns.
    pub sched_clock_add: u64,
    /// `__sched_clock_offset`, ns.
    pub sched_clock_offset: i64,
    /// `__gtod_offset`, ns.
    pub gtod_offset: i64,
    /// `CLOCK_MONOTONIC` of the host when this was read, ns.
    #[serde(default)]
    pub read_ns: i64,
    /// What the host said of its time, where the clocksource is `kvm-clock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvclock: Option<Pvclock>,
}

/// A host's word on its time (`struct pvclock_vcpu_time_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pvclock {
    /// The guest's TSC …
    pub tsc: u64,
    /// … at this time, ns.
    pub system_ns: u64,
    /// ns of a cycle that was shifted, in parts of 2^32.
    pub mult: u32,
    /// By which cycles are shifted left; right where it is negative.
    pub shift: i8,
    /// `kvm_sched_clock_offset`, ns.
    pub sched_clock_offset: u64,
}

impl Pvclock {
    /// Reads it; none while the host writes it (its version is odd).
    fn take(guest: &Guest<'_>) -> Result<Self> {
        let torn =
            || Error::Ram("the host was writing the kvm-clock page while vmeter read it".into());
        let page = guest.bytes(guest.symbol("hv_clock_boot")?, 32)?;
        let word = |at: usize| u64_at(&page, at).ok_or_else(torn);
        if word(0)? & 1 == 1 {
            return Err(torn());
        }
        let scale = word(24)?;
        let sched_clock_offset = guest.u64(guest.symbol("kvm_sched_clock_offset")?)?;
        let (mult, shift) = (scale as u32, (scale >> 32) as i8);
        Ok(Pvclock { tsc: word(8)?, system_ns: word(16)?, mult, shift, sched_clock_offset })
    }

    /// ns of a cycle of the guest's TSC.
    pub fn rate(&self) -> f64 {
        f64::from(self.mult) / 2f64.powi(32) * 2f64.powi(i32::from(self.shift))
    }

    /// The guest's TSC at a time of this clock.
    fn tsc_at(&self, ns: u64) -> u64 {
        let since = ns.wrapping_sub(self.system_ns) as i64 as f64 / self.rate();
        self.tsc.saturating_add_signed(since.round() as i64)
    }
}

impl Clocks {
    /// True if a kernel's symbols and types say where they are.
    pub fn have_places(info: &KernelInfo) -> bool {
        let has = |name: &str| info.symbols.contains_key(name);
        let types = info.fields.contains_key("timekeeper.tkr_mono.mult");
        types && has("cyc2ns") && has("__per_cpu_offset") && TIMEKEEPERS.into_iter().any(has)
    }

    /// Reads them out of a guest; `read_ns` is the host's `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no such symbols or types; [`Error::Ram`] when
    /// RAM does not hold them.
    pub fn take(guest: &Guest<'_>, read_ns: i64) -> Result<Self> {
        let info = guest.info();
        let (_, keeper) = timekeeper(guest)?;
        let number = |name: &str| guest.field(keeper, &format!("timekeeper.tkr_mono.{name}"));
        let source = number("clock")?;
        let name = guest.field(source, "clocksource.name")?;
        let timekeeper = scale(number("mult")?, number("shift")?)?;
        let fraction = number("xtime_nsec")? >> timekeeper.shift;
        // CPU 0's variables; of two copies the one that is not being written.
        let per_cpu = guest.u64(guest.symbol("__per_cpu_offset")?)?;
        let cyc2ns = guest.symbol("cyc2ns")?.wrapping_add(per_cpu);
        let size = info.sizes.get("cyc2ns_data").copied().unwrap_or(16);
        let copy = (guest.field(cyc2ns, "cyc2ns.seq")? & 1).wrapping_mul(size);
        let data = cyc2ns.wrapping_add(info.field("cyc2ns.data")?.offset()).wrapping_add(copy);
        let of_data = |name: &str| guest.field(data, &format!("cyc2ns_data.cyc2ns_{name}"));
        let clocksource = guest.text(name, MAX_NAME)?;
        let pvclock = Some(()).filter(|()| clocksource == KVM_CLOCK);
        Ok(Clocks {
            pvclock: pvclock.and_then(|()| Pvclock::take(guest).ok()).filter(|p| p.mult > 0),
            clocksource,
            cycle_last: number("cycle_last")?,
            monotonic_ns: number("base")?.wrapping_add(fraction),
            timekeeper,
            sched_clock: scale(of_data("mul")?, of_data("shift")?)?,
            sched_clock_add: of_data("offset")?,
            sched_clock_offset: guest.u64(guest.symbol("__sched_clock_offset")?)? as i64,
            gtod_offset: guest.u64(guest.symbol("__gtod_offset")?)? as i64,
            read_ns,
        })
    }

    /// True if the TSC at the last tick is known.
    pub fn counts_tsc(&self) -> bool {
        self.pvclock.is_some() || matches!(self.clocksource.as_str(), "tsc" | "tsc-early")
    }

    /// The TSC at the last tick, where [`Clocks::counts_tsc`].
    pub fn tsc_last(&self) -> u64 {
        self.tsc_of(self.cycle_last)
    }

    /// The TSC when the clocksource had counted so many cycles, where [`Clocks::counts_tsc`].
    pub fn tsc_of(&self, cycles: u64) -> u64 {
        self.pvclock.map_or(cycles, |pvclock| pvclock.tsc_at(cycles))
    }

    /// As [`Clocks::take`], of a guest that may run: between two updates of its timekeeper. A
    /// guest that was stopped within one has what it had.
    ///
    /// # Errors
    /// As [`Clocks::take`].
    pub fn take_whole(guest: &Guest<'_>, read_ns: i64) -> Result<Self> {
        let ticks = Ticks::of_timekeeper(guest)?;
        for _ in 0..TRIES {
            guest.forget();
            let before = ticks.sequence(guest)?;
            let clocks = Self::take(guest, read_ns);
            if before & 1 == 0 && ticks.sequence(guest)? == before {
                return clocks;
            }
        }
        guest.forget();
        Self::take(guest, read_ns)
    }

    /// ns of `sched_clock` of a cycle of the TSC.
    pub fn rate(&self) -> f64 {
        self.pvclock.map_or_else(|| self.sched_clock.rate(), |pvclock| pvclock.rate())
    }

    /// `sched_clock()` at the last tick, ns, where [`Clocks::counts_tsc`].
    pub fn raw_ns(&self) -> u64 {
        match self.pvclock {
            Some(pvclock) => self.cycle_last.wrapping_sub(pvclock.sched_clock_offset),
            None => self.sched_clock.ns(self.cycle_last).wrapping_add(self.sched_clock_add),
        }
    }

    /// What a record would have been stamped with at a TSC, ns, where [`Clocks::counts_tsc`].
    pub fn log_at(&self, tsc: u64) -> u64 {
        let since = tsc.wrapping_sub(self.tsc_last()) as i64 as f64 * self.rate();
        self.log_ns(self.is_stable()).saturating_add_signed(since.round() as i64)
    }

    /// True if these clocks and others make the same of what is read.
    pub fn is_scaled_as(&self, other: &Self) -> bool {
        let of = |clocks: &Self| (clocks.sched_clock, clocks.sched_clock_add, clocks.is_stable());
        self.clocksource == other.clocksource && of(self) == of(other)
    }

    /// True if the kernel came to trust its TSC, as far as RAM tells: only then has it this offset.
    pub fn is_stable(&self) -> bool {
        self.counts_tsc() && self.sched_clock_offset != 0
    }

    /// The TSC at a stamp of the log, of a kernel that trusts it.
    fn tsc_of_log(&self, ns: u64) -> u64 {
        let since = ns.wrapping_sub(self.log_ns(true)) as i64 as f64 / self.rate();
        self.tsc_last().saturating_add_signed(since.round() as i64)
    }

    /// What a record would have been stamped with at the last tick, ns; `stable` if the
    /// kernel trusted its TSC.
    pub fn log_ns(&self, stable: bool) -> u64 {
        if stable {
            self.raw_ns().wrapping_add_signed(self.sched_clock_offset)
        } else {
            self.monotonic_ns.wrapping_add_signed(self.gtod_offset)
        }
    }
}

/// Where the timekeeper's sequence count is, and the timekeeper.
fn timekeeper(guest: &Guest<'_>) -> Result<(u64, u64)> {
    let info = guest.info();
    let known = TIMEKEEPERS.into_iter().find(|name| info.symbols.contains_key(*name));
    let core = guest.symbol(known.unwrap_or(TIMEKEEPERS[0]))?;
    let keeper = info.fields.get("tk_data.timekeeper").map_or(TIMEKEEPER, |f| f.offset());
    Ok((core, core.wrapping_add(keeper)))
}

/// When a guest that runs last read its clock, to be read again and again.
///
/// A CPU's queue has the clock of the scheduler as it was when that last read it, which is the
/// log's clock (`update_rq_clock` of kernel/sched/core.c). A kernel that does not trust its TSC has
/// the timekeeper's cycles: of whole intervals, so that they are up to one interval behind
/// (`timekeeping_advance` of kernel/time/timekeeping.c).
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    /// Where the count of the timekeeper's updates is.
    sequence: u64,
    cycle_last: u64,
    /// Where CPU 0's queue has its clock, if that is the TSC's.
    queue: Option<u64>,
    /// Cycles of an interval.
    interval: u64,
}

impl Ticks {
    /// Where a guest has it.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no such symbols or types; [`Error::Ram`] when RAM does
    /// not hold them.
    pub fn of(guest: &Guest<'_>, clocks: &Clocks) -> Result<Self> {
        let queue = || {
            let per_cpu = guest.u64(guest.symbol("__per_cpu_offset").ok()?).ok()?;
            let clock = guest.info().field("rq.clock").ok()?.offset();
            Some(guest.symbol("runqueues").ok()?.wrapping_add(per_cpu).wrapping_add(clock))
        };
        let ticks = Self::of_timekeeper(guest)?;
        let (_, keeper) = timekeeper(guest)?;
        let interval = guest.field(keeper, "timekeeper.cycle_interval")?;
        let interval = match clocks.pvclock {
            Some(pvclock) => (interval as f64 / pvclock.rate()) as u64,
            None => interval,
        };
        Ok(Ticks { queue: clocks.is_stable().then(queue).flatten(), interval, ..ticks })
    }

    fn of_timekeeper(guest: &Guest<'_>) -> Result<Self> {
        let (sequence, keeper) = timekeeper(guest)?;
        // The count is the first field of what is around the timekeeper: 4 bytes.
        let cycles = guest.info().field("timekeeper.tkr_mono.cycle_last")?.offset();
        let cycle_last = keeper.wrapping_add(cycles);
        Ok(Ticks { sequence, cycle_last, queue: None, interval: 0 })
    }

    /// By how many cycles what is read can be behind the TSC that the guest had read.
    pub fn behind(&self) -> u64 {
        if self.queue.is_some() {
            0
        } else {
            self.interval
        }
    }

    /// The guest's TSC when it last read its clock; none while the kernel writes that.
    ///
    /// # Errors
    /// [`Error::Ram`] when RAM does not hold it.
    pub fn read(&self, guest: &Guest<'_>, clocks: &Clocks) -> Result<Option<u64>> {
        let mut word = [0; 8];
        if let Some(queue) = self.queue {
            guest.read(queue, &mut word)?;
            return Ok(Some(clocks.tsc_of_log(u64::from_le_bytes(word))));
        }
        let before = self.sequence(guest)?;
        guest.read(self.cycle_last, &mut word)?;
        let whole = before & 1 == 0 && self.sequence(guest)? == before;
        Ok(whole.then(|| clocks.tsc_of(u64::from_le_bytes(word))))
    }

    /// The count of the updates' begins and ends: odd within one.
    fn sequence(&self, guest: &Guest<'_>) -> Result<u32> {
        let mut sequence = [0; 4];
        guest.read(self.sequence, &mut sequence)?;
        Ok(u32::from_le_bytes(sequence))
    }
}

fn scale(mult: u64, shift: u64) -> Result<Scale> {
    let scale = u32::try_from(mult).ok().zip(u32::try_from(shift).ok());
    scale
        .filter(|&(mult, shift)| mult > 0 && shift <= MAX_SHIFT)
        .map(|(mult, shift)| Scale { mult, shift })
        .ok_or_else(|| Error::Ram(format!("invalid scale of a kernel clock: {mult} >> {shift}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::Field;
    use crate::fake::{self, BASE, RAM};

    #[test]
    fn the_timekeeper_is_found_by_either_name() {
        const AT: u64 = 0x4000;
        let mut ram = vec![0; RAM];
        fake::map(&mut ram);
        let symbol = |n: usize| 0x8000 + 512 * n as u64;
        let place = |name: &str| crate::info::SYMBOLS.iter().position(|s| *s == name).unwrap();
        fake::put(&mut ram, AT, &[BASE + AT + 8, u64::from_le_bytes(*b"tsc\0\0\0\0\0")]);
        // CPU 0's scale: data, seq; then mul, shift and offset of a copy, over each other.
        let cyc2ns = symbol(place("cyc2ns"));
        fake::put(&mut ram, cyc2ns, &[5, 4, 7]);
        for (name, after) in [("tk_core", 8), ("timekeeper_data", 8), ("timekeeper_data", 24)] {
            let mut info = fake::info(|n| BASE + symbol(n));
            info.symbols.retain(|s, _| !TIMEKEEPERS.contains(&s.as_str()) || s == name);
            match after {
                8 => info.fields.remove("tk_data.timekeeper"),
                _ => info.fields.insert("tk_data.timekeeper".into(), Field { bit: 192, bits: 64 }),
            };
            let mut ram = ram.clone();
            // clock, cycle_last, mult, shift, xtime_nsec, base
            let at = symbol(place(name)) + after;
            fake::put(&mut ram, at, &[BASE + AT, 1000 + after, 3, 1, 8, 100]);
            let clocks = fake::with(&ram, &info, |guest| Clocks::take(guest, 9)).unwrap();
            assert_eq!((clocks.clocksource.as_str(), clocks.tsc_last()), ("tsc", 1000 + after));
            assert_eq!(clocks.monotonic_ns, 104);
            // The count of updates is where the structure begins: odd within one.
            let core = symbol(place(name)) as usize;
            let read = |ram: &[u8], clocks: &Clocks| {
                fake::with(ram, &info, |guest| Ticks::of(guest, clocks)?.read(guest, clocks))
            };
            assert_eq!(read(&ram, &clocks).unwrap(), Some(1000 + after));
            // The scale of `sched_clock` is 5 / 2^4, and 100 is added to it here.
            let stable = Clocks { sched_clock_offset: 100, ..clocks.clone() };
            let queue = symbol(place("runqueues"));
            fake::put(&mut ram, queue, &[stable.log_ns(true) + 50]);
            assert_eq!(read(&ram, &stable).unwrap(), Some(1000 + after + 160));
            ram[core] = 7;
            assert_eq!(read(&ram, &clocks).unwrap(), None);
            let whole = fake::with(&ram, &info, |guest| Clocks::take_whole(guest, 9)).unwrap();
            assert_eq!(whole.cycle_last, 1000 + after, "stopped within an update");
        }
    }

    #[test]
    fn the_hosts_word_says_which_tsc_it_was() {
        // 2 GHz: a cycle is half a ns.
        let pvclock = Pvclock {
            tsc: 1_000_000,
            system_ns: 5_000_000,
            mult: 1 << 31,
            shift: 0,
            sched_clock_offset: 4_000_000,
        };
        let clocks = Clocks {
            clocksource: KVM_CLOCK.into(),
            cycle_last: 7_000_000,
            monotonic_ns: 0,
            timekeeper: Scale { mult: 1, shift: 0 },
            sched_clock: Scale { mult: 1, shift: 0 },
            sched_clock_add: 0,
            sched_clock_offset: 0,
            gtod_offset: 0,
            read_ns: 0,
            pvclock: Some(pvclock),
        };
        assert!(clocks.counts_tsc());
        assert_eq!(clocks.tsc_last(), 5_000_000);
        assert_eq!((clocks.raw_ns(), clocks.log_ns(true)), (3_000_000, 3_000_000));
        assert!((clocks.rate() - 0.5).abs() < 1e-9);
        let earlier = Clocks { cycle_last: 4_900_000, ..clocks.clone() };
        assert_eq!(earlier.tsc_last(), 800_000);
        assert!(!Clocks { pvclock: None, ..clocks }.counts_tsc());
    }
}
