//! Instruction counts as the guest's virtual time, and back.
//!
//! With `-icount shift=N` every instruction takes 2^N ns, so the count that the
//! plugin stamps is nearly the time. Two things part them: an idle guest skips to
//! its next timer (`sleep=off`: no instruction, but time), and the plugin counts a
//! block when it begins, so that one cut short by an exception, or begun again for
//! a device's register in its middle (QEMU: `cpu_io_recompile`), counts too much.
//! How much is learned from moments that are known in both: each record of the
//! guest's trace, which has virtual time, is written by a function that the plugin
//! stamps. In between, a moment is placed by the nearer of the two that enclose it
//! (an initcall that waits does so before it returns, and its return is recorded at
//! once), and what the two disagree by is the error. Before the first, only firmware
//! idles: set-up code, decompressor and the kernel up to its scheduler never halt.

use super::stamps::{listed, Stamps};
use std::collections::BTreeMap;
use vmeter_kernel_image::ftrace::{Decoded, FtraceKind};
use vmeter_model::Ns;

/// Functions that write one record of the trace each time they are called: of the
/// events that `guest_ftrace` asks for, and of writing to `trace_marker`
/// (kernel: include/trace/trace_events.h, kernel/trace/trace.c).
pub const WRITERS: &[&str] = &[
    "trace_event_raw_event_initcall_level",
    "trace_event_raw_event_initcall_start",
    "trace_event_raw_event_initcall_finish",
    "trace_event_raw_event_module_load",
    "trace_event_raw_event_sched_process_exec",
    "trace_event_raw_event_sched_process_exit",
    "trace_event_raw_event_console",
    "tracing_mark_write",
    "trace_event_raw_event_task_newtask",
];

fn writer(kind: &FtraceKind) -> Option<&'static str> {
    Some(
        WRITERS[match kind {
            FtraceKind::InitcallLevel { .. } => 0,
            FtraceKind::InitcallStart { .. } => 1,
            FtraceKind::InitcallFinish { .. } => 2,
            FtraceKind::ModuleLoad { .. } => 3,
            FtraceKind::ProcessExec { .. } => 4,
            FtraceKind::ProcessExit { .. } => 5,
            FtraceKind::Console { .. } => 6,
            FtraceKind::Marker { .. } => 7,
            FtraceKind::ProcessFork { .. } => 8,
            // Others are written by a function that their kinds have in common, or by a probe.
            FtraceKind::ProcessWait { .. }
            | FtraceKind::ProcessGroup { .. }
            | FtraceKind::ProcessArguments { .. }
            | FtraceKind::ProcessReap { .. } => return None,
        }],
    )
}

/// Past the last known moment, this share of what was counted may be too much.
const UNKNOWN_SHARE: Ns = 10;

/// One moment on both scales.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Point {
    insns: u64,
    at: Ns,
}

/// Virtual time of a run, by instructions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualTime {
    shift: u32,
    /// In order on both scales.
    points: Vec<Point>,
}

impl VirtualTime {
    /// Learns from the stamps of the trace's writers and what they wrote. `shift` is
    /// the N of `-icount shift=N`.
    pub fn learn(stamps: &Stamps, list: &str, trace: &Decoded, shift: u32) -> Self {
        let names = listed(list);
        let mut written: BTreeMap<&str, (Vec<u64>, Vec<Ns>)> = BTreeMap::new();
        for stamp in stamps.stamps.iter().filter(|stamp| !stamp.returned) {
            let Some(name) = names.get(&stamp.id).map(|address| address.name) else { continue };
            if WRITERS.contains(&name) {
                written.entry(name).or_default().0.push(stamp.instructions);
            }
        }
        for event in &trace.events {
            let at = Ns::try_from(event.ts).unwrap_or(Ns::MAX);
            let Some(writer) = writer(&event.kind) else { continue };
            written.entry(writer).or_default().1.push(at);
        }
        let mut points: Vec<Point> =
            written.into_values().flat_map(|(insns, at)| pair(&insns, &at, trace, shift)).collect();
        points.sort_by_key(|point| (point.insns, point.at));
        let mut last = Point::default();
        points.retain(|point| {
            let after = point.insns > last.insns && point.at >= last.at;
            if after {
                last = *point;
            }
            after
        });
        VirtualTime { shift: shift.min(MAX_SHIFT), points }
    }

    /// True if nothing was known in both.
    pub fn is_unknown(&self) -> bool {
        self.points.is_empty()
    }

    /// When that many instructions were executed, and the error, ns.
    pub fn at(&self, insns: u64) -> (Ns, Ns) {
        let next = self.points.partition_point(|point| point.insns <= insns);
        let last = self.before(next);
        let since = self.ns(insns - last.insns);
        let by_last = last.at.saturating_add(since);
        let Some(next) = self.points.get(next) else {
            return (by_last, since / UNKNOWN_SHARE);
        };
        if since == 0 {
            return (by_last, 0);
        }
        let idle = self.idle(last, *next);
        let until = self.ns(next.insns - insns);
        let by_next = idle > 0 && (until < since || last == Point::default());
        let at = if by_next { next.at.saturating_sub(until) } else { by_last };
        (at.min(next.at), idle.saturating_abs())
    }

    /// Instructions executed by then.
    pub fn insns(&self, at: Ns) -> u64 {
        let next = self.points.partition_point(|point| point.at <= at);
        let last = self.before(next);
        let passed = |ns: Ns| u64::try_from(ns).unwrap_or(0) >> self.shift;
        let by_last = last.insns.saturating_add(passed(at.saturating_sub(last.at)));
        let Some(next) = self.points.get(next) else { return by_last };
        let half = match last.insns {
            0 => 0,
            begun => begun + (next.insns - begun) / 2,
        };
        let by_next = next.insns.saturating_sub(passed(next.at - at));
        match self.idle(last, *next) {
            ..=0 => by_last.min(next.insns),
            _ => by_last.min(half.max(by_next)),
        }
    }

    /// How much more time than instructions passed between two points; negative if
    /// too many instructions were counted.
    fn idle(&self, last: Point, next: Point) -> Ns {
        (next.at - last.at).saturating_sub(self.ns(next.insns - last.insns))
    }

    fn before(&self, index: usize) -> Point {
        index.checked_sub(1).map_or(Point::default(), |last| self.points[last])
    }

    fn ns(&self, insns: u64) -> Ns {
        Ns::try_from(u128::from(insns) << self.shift).unwrap_or(Ns::MAX)
    }
}

/// Calls of one writer with its records. A guest that is ended goes on after its last record
/// was read, so calls at the end may have none; a ring that wrapped lost its oldest, and then
/// the records go with those calls whose instructions are most like the time between records.
fn pair(insns: &[u64], at: &[Ns], trace: &Decoded, shift: u32) -> Vec<Point> {
    let skipped = match insns.len().checked_sub(at.len()) {
        Some(0) => Some(0),
        Some(_) if trace.damaged_pages > 0 => None,
        Some(_) if trace.lost == 0 => Some(0),
        Some(more) => alike(insns, &at[at.len().saturating_sub(TRIED)..], more, shift),
        None => None,
    };
    let Some(skipped) = skipped else { return Vec::new() };
    let calls = insns[skipped..].iter();
    calls.zip(at).map(|(insns, at)| Point { insns: *insns, at: *at }).collect()
}

/// So many of the newest records are held against the calls.
const TRIED: usize = 64;

/// How many of the oldest calls, at most `more`, have no record. `at` are the newest records.
/// None if two answers fit as well.
fn alike(insns: &[u64], at: &[Ns], more: usize, shift: u32) -> Option<usize> {
    let older = insns.len().checked_sub(more + at.len())?;
    let apart = |skipped: usize| -> Option<u128> {
        let calls = insns.get(older + skipped..)?.windows(2);
        let pairs = at.windows(2).zip(calls);
        Some(
            pairs
                .map(|(at, insns)| {
                    let time = u128::try_from(at[1] - at[0]).unwrap_or(0);
                    time.abs_diff(u128::from(insns[1].saturating_sub(insns[0])) << shift)
                })
                .sum(),
        )
    };
    let mut tried: Vec<(u128, usize)> =
        (0..=more).filter_map(|skipped| Some((apart(skipped)?, skipped))).collect();
    tried.sort_unstable();
    match tried[..] {
        [(best, _), (second, _), ..] if best == second => None,
        [(_, skipped), ..] => Some(skipped),
        [] => None,
    }
}

/// QEMU's own limit (system/cpu-timers.c).
const MAX_SHIFT: u32 = 10;

/// N of `-icount shift=N` in a QEMU command line; 0 where it is not a number.
pub fn shift(argv: &[String]) -> u32 {
    let icount = argv.iter().position(|word| word == "-icount" || word == "--icount");
    let value = icount.and_then(|at| argv.get(at + 1)).map_or("", String::as_str);
    let numbers = value.split(',').map(|part| part.strip_prefix("shift=").unwrap_or(part));
    numbers.filter_map(|number| number.parse().ok()).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(points: &[(u64, Ns)]) -> VirtualTime {
        let points = points.iter().map(|(insns, at)| Point { insns: *insns, at: *at }).collect();
        VirtualTime { shift: 0, points }
    }

    #[test]
    fn time_is_exact_where_it_is_known_and_by_the_nearer_in_between() {
        // 10 too many before the first; then the guest idles for 500 ns.
        let time = known(&[(1_000, 990), (2_000, 2_490)]);
        assert_eq!(time.at(0), (0, 0));
        assert_eq!(time.at(400), (400, 10));
        assert_eq!(time.at(995), (990, 10), "not past what is known");
        assert_eq!(time.at(1_000), (990, 0));
        assert_eq!(time.at(1_400), (1_390, 500));
        assert_eq!(time.at(1_900), (2_390, 500));
        assert_eq!(time.at(2_100), (2_590, 10));
        let back = [0, 990, 1_390, 1_600, 2_390, 2_490, 2_590].map(|at| time.insns(at));
        assert_eq!(back, [0, 1_000, 1_400, 1_500, 1_900, 2_000, 2_100]);
    }

    #[test]
    fn only_firmware_idles_before_anything_is_known() {
        let time = known(&[(1_000, 1_700)]);
        assert_eq!(time.at(0), (0, 0));
        assert_eq!(time.at(300), (1_000, 700), "the kernel's first instruction");
        assert_eq!([0, 500, 1_000, 1_700].map(|at| time.insns(at)), [0, 0, 300, 1_000]);
    }

    #[test]
    fn calls_without_a_record_are_the_last_ones_or_those_that_the_ring_lost() {
        let points = |insns: &[u64], at: &[Ns], lost| {
            let trace = Decoded { lost, ..Decoded::default() };
            pair(insns, at, &trace, 0).iter().map(|p| (p.insns, p.at)).collect::<Vec<_>>()
        };
        // Nothing lost: the guest went on for one call, or for three.
        assert_eq!(points(&[1, 2, 3], &[10, 20], 0), [(1, 10), (2, 20)]);
        assert_eq!(points(&[1, 5, 6, 7], &[10], 0), [(1, 10)]);
        assert_eq!(points(&[1], &[10, 20], 0), []);
        // The oldest lost, and the guest went on for none, or for one call.
        let calls = [10, 110, 400, 450, 700];
        assert_eq!(points(&calls, &[500, 560, 810], 1), [(400, 500), (450, 560), (700, 810)]);
        assert_eq!(points(&calls, &[200, 500, 560], 1), [(110, 200), (400, 500), (450, 560)]);
        assert_eq!(points(&[0, 10, 20, 30], &[10, 20], 1), [], "each place fits");
        let trace = Decoded { damaged_pages: 1, ..Decoded::default() };
        assert_eq!(pair(&[1, 2], &[10], &trace, 0), []);
    }

    #[test]
    fn the_shift_is_in_the_command_line() {
        let of =
            |line: &str| shift(&line.split_whitespace().map(String::from).collect::<Vec<String>>());
        assert_eq!(of("qemu -icount shift=3,sleep=off -m 1"), 3);
        assert_eq!(of("qemu -icount 7"), 7);
        assert_eq!(of("qemu -icount shift=auto"), 0);
        assert_eq!(of("qemu -icount"), 0);
        let time = VirtualTime { shift: 3, points: Vec::new() };
        assert_eq!((time.at(100), time.insns(800)), ((800, 80), 100));
    }

    proptest! {
        #[test]
        fn both_scales_keep_their_order(
            mut steps in proptest::collection::vec((1u64..1 << 62, 0i64..1 << 62), 0..20),
            mut asked in proptest::collection::vec(any::<u64>(), 1..20),
            shift in 0u32..=MAX_SHIFT,
        ) {
            steps.sort_unstable();
            let mut at = 0;
            let mut points: Vec<Point> = steps.iter().map(|(insns, step)| {
                at = step.max(&at).to_owned();
                Point { insns: *insns, at }
            }).collect();
            points.dedup_by_key(|point| point.insns);
            let time = VirtualTime { shift, points };
            asked.sort_unstable();
            let times: Vec<Ns> = asked.iter().map(|insns| time.at(*insns).0).collect();
            prop_assert!(times.is_sorted(), "{times:?}");
            prop_assert!(asked.iter().all(|insns| time.at(*insns).1 >= 0));
            let back: Vec<u64> = times.iter().map(|at| time.insns(*at)).collect();
            prop_assert!(back.is_sorted(), "{back:?}");
        }
    }
}
