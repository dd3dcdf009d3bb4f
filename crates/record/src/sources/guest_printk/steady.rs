//! A log on the host's clock by the log's own clock, where one moment of it is known.
//!
//! A kernel's clock loses time as long as it counts ticks (which a busy host does not give it
//! in time), and none from when it has switched to a clocksource that counts by itself: from
//! "clocksource: Switched to clocksource tsc-early" on, one offset holds for the whole log.
//! (In two boots of 80 s here, 60 lines of the console arrived within 60 ms of it, the
//! earliest 0.2 ms.) It may stand still until its next tick, though, and make up for that then ([`stood`]),
//! until it is marked stable. How much it lost until then is the difference to `sched_clock`, which
//! RAM has, and "sched_clock: Marking stable (…)->(…, -LOST)" says. Nothing is lost before
//! `sched_clock_init`, right before "Calibrating delay loop".

use super::{ts, Anchor, Window};
use vmeter_kernel_image::clocks::Clocks;
use vmeter_kernel_image::printk::PrintkRecord;
use vmeter_model::{kernel_log, Ns};

/// How far off a line is that is said right after a clock begins, ns: what the kernel does
/// between reading it and storing the line.
const NEXT_LINE_NS: Ns = 5_000_000;
/// A TSC that was calibrated otherwise is off by at most one part of so many; else the kernel
/// does not take the refined value (`tsc_refine_calibration_work`).
const CALIBRATED_TO: Ns = 100;

/// How much earlier a line can have been said that was before the clock began, ns: from a
/// kernel's entry to its clock 1.5 s passed here at most, on two CPUs with a load of 16.
const BEFORE_CLOCK_NS: Ns = 2_000_000_000;

/// The record from which on a log's clock may lose time: the first, where none says so.
pub(super) fn loses(records: &[PrintkRecord]) -> usize {
    records.iter().position(|r| r.by_kernel && kernel_log::counts_ticks(&r.text)).unwrap_or(0)
}

/// Where the parts of a log begin, as indices of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    /// Stamps are those of the TSC; before, of ticks, or none.
    begins: usize,
    /// The clock begins to lose time.
    loses: usize,
    /// It loses none any more.
    steady: usize,
    /// False if it changed its mind in between: what it lost is not known.
    whole: bool,
}

impl Parts {
    /// `counts_now` says that the clock counts the TSC by now.
    fn of(records: &[PrintkRecord], counts_now: bool) -> Option<Self> {
        let at = |from: usize, is: &dyn Fn(&str) -> bool| {
            let found = records.iter().skip(from).position(|r| r.by_kernel && is(&r.text));
            found.map(|index| index + from)
        };
        let counts = |text: &str| {
            let name = text.strip_prefix("clocksource: Switched to clocksource ");
            name.is_some_and(|name| !name.contains("jiffies"))
        };
        let breaks = |r: &PrintkRecord| {
            r.by_kernel
                && ["tsc: Marking TSC unstable", "sched_clock: Marking unstable"]
                    .iter()
                    .any(|start| r.text.starts_with(start))
        };
        let broken = records.iter().rposition(breaks);
        let steady = at(broken.map_or(0, |b| b + 1), &counts);
        if steady.is_none() && broken.is_none() && counts_now && is_cut(records) {
            return Some(Parts { begins: 0, loses: 0, steady: 0, whole: true });
        }
        let steady = steady?;
        let pairs = records[..steady].windows(2);
        let backwards = pairs.enumerate().rfind(|(_, pair)| ts(&pair[1]) < ts(&pair[0]));
        let first = || records.iter().position(|r| ts(r) > 0);
        let begins = backwards.map(|(index, _)| index + 1).or_else(first)?.min(steady);
        let loses = at(begins, &kernel_log::counts_ticks);
        let loses = loses.filter(|l| *l < steady).unwrap_or(begins);
        Some(Parts { begins, loses, steady, whole: broken.is_none() })
    }
}

/// The log's clock against the host's.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Host ns of a ns of the log, since `refined`.
    now: f64,
    /// The same before.
    before: f64,
    /// One part of so many by which `before` can be off; 0 if it is known.
    off: Ns,
    /// The log's clock when its TSC was calibrated anew, ns; 0 if it never was.
    refined: Ns,
}

impl Rate {
    /// By what the log says of its calibrations; `host` is the host's ns of a cycle of the TSC.
    fn of(records: &[PrintkRecord], clocks: Option<(&Clocks, f64)>) -> Self {
        let now = clocks.map_or(1.0, |(clocks, host)| host / clocks.rate());
        let mhz = |record: &PrintkRecord, start: &str| -> Option<f64> {
            record.text.strip_prefix(start)?.split(' ').next()?.parse().ok()
        };
        let refined = "tsc: Refined TSC clocksource calibration: ";
        let again = records.iter().find_map(|r| Some((ts(r), mhz(r, refined)?)));
        let Some((refined, anew)) = again else {
            return Rate { now, before: now, off: 0, refined: 0 };
        };
        let first = records.iter().find_map(|r| mhz(r, "tsc: Detected "));
        match first.filter(|first| (first / anew - 1.0).abs() * (CALIBRATED_TO as f64) < 1.0) {
            Some(first) => Rate { now, before: now * first / anew, off: 0, refined },
            None => Rate { now, before: now, off: CALIBRATED_TO, refined },
        }
    }

    /// Host time from one stamp of the log to a later one, and how far off it can be.
    fn between(&self, from: Ns, to: Ns) -> (Ns, Ns) {
        let before = to.min(self.refined).saturating_sub(from).max(0);
        let now = to.saturating_sub(from.max(self.refined)).max(0);
        let length = before as f64 * self.before + now as f64 * self.now;
        (length.round() as Ns, before.checked_div(self.off).unwrap_or(0))
    }
}

/// What RAM had of the log's clocks, with the host's.
#[derive(Debug, Clone, Copy)]
pub(super) struct AtEnd<'a> {
    pub clocks: &'a Clocks,
    /// The run's time of the last tick, ns, and how far off it can be.
    pub at: Ns,
    pub error: Ns,
    /// The host's ns of a cycle of the guest's TSC.
    pub rate: f64,
}

/// True if the first records of a log are overwritten: what is left was said long after its clock began
/// to be steady.
fn is_cut(records: &[PrintkRecord]) -> bool {
    records.first().is_some_and(|record| record.seq > 0)
}

/// True if a kernel came to trust its TSC, and did so at the end.
fn is_stable(records: &[PrintkRecord], clocks: &Clocks) -> bool {
    let said = |r: &PrintkRecord| {
        let text = r.text.strip_prefix("sched_clock: Marking ").filter(|_| r.by_kernel)?;
        Some(text.starts_with("stable"))
    };
    let by_ram = || is_cut(records) && clocks.is_stable();
    records.iter().rev().find_map(said).unwrap_or_else(by_ram)
}

/// What the log's clock had lost when it began to be steady, ns.
fn lost(records: &[PrintkRecord], end: Option<AtEnd<'_>>) -> Option<Ns> {
    let ram = end.map(|end| {
        let log = end.clocks.log_ns(is_stable(records, end.clocks));
        Ns::try_from(end.clocks.raw_ns()).ok()?.checked_sub(Ns::try_from(log).ok()?)
    });
    let said = || records.iter().find_map(|r| kernel_log::lost(&r.text));
    ram.unwrap_or_else(said).map(|lost| lost.max(0))
}

/// For each record half of how long the clock stood still when it was said, ns. Until it is marked stable, the
/// clock goes no further than a tick beyond the last one (`sched_clock_local`): what a guest says that gets no
/// tick in time has one and the same stamp, and the clock makes up for it with the next.
fn stood(records: &[PrintkRecord]) -> Vec<Ns> {
    let stable =
        |r: &PrintkRecord| r.by_kernel && r.text.starts_with("sched_clock: Marking stable");
    let stable = records.iter().position(stable).unwrap_or(records.len());
    let mut half = vec![0; records.len()];
    let mut from = 0;
    for group in records[..stable].chunk_by(|a, b| a.ts_ns == b.ts_ns) {
        let to = from + group.len();
        let goes_on = records.get(to).filter(|_| group.len() > 1 && group[0].ts_ns > 0);
        let length = goes_on.map_or(0, |next| ts(next).saturating_sub(ts(&group[0])).max(0));
        half[from..to].fill(length / 2);
        from = to;
    }
    half
}

/// Records by the log's own clock: the run's time of each, and its error; none of those of
/// which it says nothing.
pub(super) fn by_clock(
    records: &[PrintkRecord],
    matched: &[Option<(Ns, Ns)>],
    end: Option<AtEnd<'_>>,
    window: Window,
) -> Vec<Option<(Ns, Ns)>> {
    let mut placed = vec![None; records.len()];
    let end = end.filter(|end| end.clocks.counts_tsc());
    let Some(parts) = Parts::of(records, end.is_some()) else { return placed };
    let rate = Rate::of(records, end.map(|end| (end.clocks, end.rate)));
    // What arrived the least late; a clock that is read needs no arrival.
    let known = (parts.steady..records.len()).filter_map(|i| {
        let (at, error) = matched[i]?;
        Some(Anchor { at, error, ts: ts(&records[i]) })
    });
    let from_zero = |a: &Anchor| a.at.saturating_sub(rate.between(0, a.ts).0);
    let shown = known.min_by_key(|a| (a.error / NEXT_LINE_NS, from_zero(a)));
    let read = end.map(|end| {
        let ts = Ns::try_from(end.clocks.log_ns(is_stable(records, end.clocks))).unwrap_or(Ns::MAX);
        Anchor { at: end.at, error: end.error, ts }
    });
    let Some(anchor) = shown.into_iter().chain(read).min_by_key(|a| a.error) else {
        return placed;
    };
    let lost = lost(records, end).filter(|_| parts.whole);
    let stood = stood(records);
    for (index, record) in records.iter().enumerate() {
        let lost = match lost {
            _ if index >= parts.steady => (0, 0),
            Some(lost) if index <= parts.loses => (lost, NEXT_LINE_NS),
            Some(lost) => (lost / 2, lost / 2),
            None => continue,
        };
        let clockless = index < parts.begins;
        let stamp = if clockless { 0 } else { ts(record) };
        let (length, off) = if stamp <= anchor.ts {
            let (length, off) = rate.between(stamp, anchor.ts);
            (-length, off)
        } else {
            rate.between(anchor.ts, stamp)
        };
        let at = anchor.at.saturating_add(length).saturating_sub(lost.0);
        let at = at.saturating_add(stood[index]);
        let at = at.clamp(window.start.min(window.end), window.end);
        let unknown =
            if clockless { BEFORE_CLOCK_NS.min(at.saturating_sub(window.start)).max(0) } else { 0 };
        let error = anchor.error.saturating_add(off).saturating_add(lost.1);
        let error = error.saturating_add(stood[index]);
        placed[index] = Some((at, error.saturating_add(unknown)));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmeter_kernel_image::clocks::Scale;

    const MS: Ns = 1_000_000;

    fn log(lines: &[(Ns, &str)]) -> Vec<PrintkRecord> {
        let record = |&(ms, text): &(Ns, &str)| PrintkRecord {
            seq: 0,
            ts_ns: (ms * MS) as u64,
            level: 6,
            caller_id: 0,
            by_kernel: true,
            text: text.into(),
        };
        lines.iter().map(record).collect()
    }

    const BOOT: &[(Ns, &str)] = &[
        (0, "Linux version"),
        (28, "tsc: Detected 2000.000 MHz processor"),
        (1, "Calibrating delay loop (skipped)"),
        (400, "smp: Bringing up secondary CPUs ..."),
        (1_000, "clocksource: Switched to clocksource tsc-early"),
        (2_000, "sched_clock: Marking stable (1990000000, 10000000)->(2600000000, -600000000)"),
        (3_000, "Run /init as init process"),
    ];

    fn window() -> Window {
        Window { start: 0, end: 20_000 * MS }
    }

    #[test]
    fn one_line_places_the_log_and_says_what_was_lost() {
        let records = log(BOOT);
        let mut matched = vec![None; records.len()];
        matched[5] = Some((7_000 * MS, 200_000));
        let placed = by_clock(&records, &matched, None, window());
        let at = |index: usize| placed[index].map(|(at, error)| (at / MS, error / MS));
        assert_eq!(at(6), Some((8_000, 0)));
        assert_eq!(at(4), Some((6_000, 0)));
        // Somewhere between none and all of the 600 ms was lost by then.
        assert_eq!(at(3), Some((5_100, 300)));
        assert_eq!(at(2), Some((4_401, 5)));
        assert_eq!(at(0), Some((4_400, 2_005)));
        assert_eq!(at(1), at(0), "counted in ticks");
    }

    #[test]
    fn a_clock_that_stands_still_until_its_next_tick_places_what_is_said_meanwhile_in_between() {
        let mut lines = BOOT.to_vec();
        let still = [(1_400, "a"), (1_400, "b"), (1_400, "c"), (1_520, "d")];
        lines.splice(5..5, still);
        lines.extend([(3_000, "same"), (3_500, "once it is stable it stands still no more")]);
        let records = log(&lines);
        let mut matched = vec![None; records.len()];
        matched[9] = Some((7_000 * MS, 200_000));
        let placed = by_clock(&records, &matched, None, window());
        let at = |index: usize| placed[index].map(|(at, error)| (at / MS, error / MS));
        assert_eq!([at(5), at(6), at(7)], [Some((6_460, 60)); 3]);
        assert_eq!((at(8), at(10), at(11)), (Some((6_520, 0)), Some((8_000, 0)), Some((8_000, 0))));
    }

    #[test]
    fn what_ram_has_places_a_log_of_which_nothing_was_shown() {
        let records = log(BOOT);
        let clocks = Clocks {
            clocksource: "tsc".into(),
            // 4.6 s of sched_clock at 2 GHz, of which the log had lost 0.6 s.
            cycle_last: 10_000_000_000,
            monotonic_ns: 0,
            timekeeper: Scale { mult: 1 << 20, shift: 21 },
            sched_clock: Scale { mult: 1 << 20, shift: 21 },
            sched_clock_add: 400_000_000u64.wrapping_neg(),
            sched_clock_offset: -600_000_000,
            gtod_offset: 0,
            read_ns: 0,
            pvclock: None,
        };
        let end = AtEnd { clocks: &clocks, at: 9_000 * MS, error: MS, rate: 0.5 };
        let placed = by_clock(&records, &vec![None; records.len()], Some(end), window());
        assert_eq!(placed[6], Some((8_000 * MS, MS)));
        assert_eq!(placed[2], Some((4_401 * MS, 6 * MS)));
    }

    #[test]
    fn a_log_whose_begin_is_overwritten_is_placed_by_ram() {
        let mut records = log(&BOOT[6..]);
        let clocks = Clocks {
            clocksource: "tsc".into(),
            cycle_last: 10_000_000_000,
            monotonic_ns: 0,
            timekeeper: Scale { mult: 1 << 20, shift: 21 },
            sched_clock: Scale { mult: 1 << 20, shift: 21 },
            sched_clock_add: 400_000_000u64.wrapping_neg(),
            sched_clock_offset: -600_000_000,
            gtod_offset: 0,
            read_ns: 0,
            pvclock: None,
        };
        let end = AtEnd { clocks: &clocks, at: 9_000 * MS, error: MS, rate: 0.5 };
        let placed = |records: &[PrintkRecord]| by_clock(records, &[None], Some(end), window())[0];
        assert_eq!(placed(&records), None, "it may have been said before the clock was steady");
        records[0].seq = 7;
        assert_eq!(placed(&records), Some((8_000 * MS, MS)));
    }

    #[test]
    fn a_clock_that_was_given_up_says_nothing_of_what_was_before() {
        let mut lines = BOOT.to_vec();
        lines.push((3_500, "tsc: Marking TSC unstable due to clocksource watchdog"));
        let anchored = |lines: &[(Ns, &str)]| {
            let records = log(lines);
            let mut matched = vec![None; records.len()];
            *matched.last_mut().expect("a line") = Some((9_000 * MS, 1));
            by_clock(&records, &matched, None, window())
        };
        assert!(anchored(&lines).iter().all(Option::is_none));
        lines.push((3_600, "clocksource: Switched to clocksource hpet"));
        let placed = anchored(&lines);
        assert!(placed[..8].iter().all(Option::is_none) && placed[8].is_some(), "{placed:?}");
    }

    proptest! {
        #[test]
        fn any_log_is_survived(
            lines in proptest::collection::vec((any::<u64>(), 0..BOOT.len(), any::<Option<(Ns, Ns)>>()), 0..30),
            start: Ns,
            end: Ns,
        ) {
            let text = |n: usize| BOOT[n].1.to_owned();
            let records: Vec<PrintkRecord> = lines
                .iter()
                .map(|(ts_ns, n, _)| PrintkRecord { ts_ns: *ts_ns, text: text(*n), ..log(BOOT)[0].clone() })
                .collect();
            let matched: Vec<_> = lines.iter().map(|(.., known)| *known).collect();
            let placed = by_clock(&records, &matched, None, Window { start, end });
            prop_assert_eq!(placed.len(), records.len());
        }
    }
}
