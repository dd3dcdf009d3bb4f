//! Initcalls: starts paired with ends, source by source, then one call out of
//! all that was seen of it.
//!
//! ftrace, a TCG plugin, the log buffer and the console may all have seen the
//! same initcall. The best sight of it wins: one that has an end, then one with
//! instructions, then the smallest error; pid and module are taken from whoever
//! knows them.

use crate::anchors::Stamp;
use crate::console::{self, Record};
use crate::input::Seen;
use crate::lines::Line;
use crate::patterns::On;
use std::collections::{BTreeMap, HashMap, HashSet};
use vmeter_model::{EventKind, Ns};

/// One initcall.
#[derive(Debug, Clone)]
pub(crate) struct Call<'a> {
    pub function: String,
    pub module: Option<String>,
    pub pid: Option<i32>,
    pub start: Stamp<'a>,
    /// None if nothing says that it returned: it ran when the run ended.
    pub end: Option<Stamp<'a>>,
    counted: bool,
    /// How long it took by the kernel's own word, ns, where its clock loses nothing any more.
    took: Option<Ns>,
    /// True if its times are those of lines.
    said: bool,
}

/// Kernels before 5.19 say ns / 1024 and call them usecs (init/main.c): so much longer, in 1000.
const OLD_USECS: Ns = 24;
/// What is cut off from a length in usecs, ns.
const CUT_NS: Ns = 1_000;

impl Call<'_> {
    /// Takes the kernel's own word for how long a call took where the times of its begin and its
    /// end contradict it by more than they are off: a line arrives late on a busy host, and a call
    /// whose end is traced after it is printed has the printing in it. Where in between it ran is
    /// not known, which is the error.
    fn settle(&mut self) {
        let (Some(end), Some(took)) = (&mut self.end, self.took) else { return };
        let seen = end.at - self.start.at;
        let most = took.saturating_add(took / 1_000 * OLD_USECS).saturating_add(CUT_NS);
        let off = if seen < took { took - seen } else { (seen - most).max(0) };
        let own = self.start.error.saturating_add(end.error);
        if off <= own {
            return;
        }
        if self.said {
            self.start.at = (end.at - took).max(0);
        } else if seen > most {
            end.at = self.start.at + took;
        } else {
            return;
        }
        self.start.error = self.start.error.max(off);
        end.error = end.error.max(off);
    }

    /// True for one of the console drivers', called by the boot CPU long before
    /// the others (kernel: kernel/printk/printk.c, `console_init`).
    pub(crate) fn of_console(&self) -> bool {
        self.pid == Some(0) || CONSOLE_INITCALLS.contains(&self.function.as_str())
    }
}

/// `console_initcall()`s of x86, by function.
const CONSOLE_INITCALLS: &[&str] = &[
    "con_init",
    "hvc_console_init",
    "hvc_sbi_console_init",
    "xen_cons_init",
    "univ8250_console_init",
    "early_uart_console_init",
    "kgdboc_earlycon_late_init",
    "mux_console_init",
    "nfcon_init",
    "speakup_init",
    "uartlite_console_init",
    "virtio_console_early_init",
];

/// All calls of a run, and what did not pair.
#[derive(Debug, Default)]
pub(crate) struct Calls<'a> {
    /// In order of start.
    pub all: Vec<Call<'a>>,
    /// In words.
    pub warnings: Vec<String>,
}

impl<'a> Calls<'a> {
    /// Those of the kernel itself, without the consoles' early ones.
    pub(crate) fn builtin(&self) -> impl Iterator<Item = &Call<'a>> {
        self.all.iter().filter(|c| c.module.is_none() && !c.of_console())
    }

    /// When the last initcall before `at` began, if `at` is inside it.
    pub(crate) fn holding(&self, at: Ns) -> Option<Ns> {
        let next = self.all.partition_point(|c| c.start.at < at);
        let call = self.all.get(next.checked_sub(1)?)?;
        call.end.filter(|end| at < end.at).map(|_| call.start.at)
    }
}

/// Finds every initcall in events and lines.
pub(crate) fn collect<'a>(seen: &[Seen<'a>], lines: &[Line<'a>], total: Ns) -> Calls<'a> {
    let mut by_source: BTreeMap<&'a str, Pairing<'a>> = BTreeMap::new();
    for s in seen {
        match s.what {
            EventKind::InitcallStart { function, module, pid } => {
                let pairing = by_source.entry(s.source).or_default();
                let counted = s.insns.is_some();
                let loaded = pairing.loading.remove(pid);
                let module = module.as_deref().or(loaded);
                pairing.start(function, module, *pid, Stamp::of(s), counted);
            }
            EventKind::ModuleLoad { module, pid } => {
                by_source.entry(s.source).or_default().loading.insert(*pid, module);
            }
            EventKind::InitcallEnd { function, pid, .. } => {
                by_source.entry(s.source).or_default().end(function, *pid, Stamp::of(s), None);
            }
            _ => {}
        }
    }
    let mut parsers: BTreeMap<&'a str, console::Parser> = BTreeMap::new();
    let steady = lines.iter().find(|l| l.text.starts_with(STEADY) && l.timed).map(|l| l.at);
    for line in lines.iter().filter(|l| l.on == On::Kernel && !l.by_program) {
        for record in parsers.entry(line.source).or_default().feed(line.text) {
            let pairing = by_source.entry(line.source).or_default();
            pairing.steady = steady.is_some_and(|since| since <= line.at);
            pairing.said = true;
            said(pairing, line, record);
        }
    }
    merge(by_source, total)
}

/// From here on the kernel's clock loses nothing (kernel: kernel/time/timekeeping.c): before, it
/// counts ticks, which a busy host does not let it have.
const STEADY: &str = "clocksource: Switched to clocksource tsc";

/// What a line says: a call begins when its line is out, and ends before the next.
fn said<'a>(pairing: &mut Pairing<'a>, line: &Line<'a>, record: Record) {
    let stamp = |at| Stamp { at, error: line.error, source: line.source };
    match record {
        Record::Calling { function, module, pid } => {
            pairing.start(&function, module.as_deref(), pid, stamp(line.end), false);
        }
        Record::Returned { function, usecs, .. } => {
            let took = usecs.and_then(|n| Ns::try_from(n).ok()).map(|n| n.saturating_mul(1_000));
            pairing.end(&function, None, stamp(line.at), took);
        }
    }
}

/// Starts and ends of one source.
#[derive(Debug, Default)]
struct Pairing<'a> {
    calls: Vec<Call<'a>>,
    /// Indices of calls without an end, by the thread that runs them.
    open: HashMap<Option<i32>, usize>,
    by_function: HashMap<String, usize>,
    /// Modules loaded whose initcall is the next of their thread.
    loading: HashMap<Option<i32>, &'a str>,
    unpaired_ends: usize,
    /// Indices of calls that end where their thread's next begins, for want of better.
    torn: HashSet<usize>,
    /// True if what the kernel says that a call took is to be believed by now.
    steady: bool,
    /// True if its times are those of lines.
    said: bool,
}

impl<'a> Pairing<'a> {
    fn start(
        &mut self,
        function: &str,
        module: Option<&str>,
        pid: Option<i32>,
        at: Stamp<'a>,
        counted: bool,
    ) {
        let index = self.calls.len();
        // A thread runs one initcall at a time: if the last has no end yet, it is
        // lost, or its line is late.
        if let Some(last) = self.open.insert(pid, index) {
            self.calls[last].end = Some(at);
            self.torn.insert(last);
        }
        self.by_function.insert(function.to_owned(), index);
        let (function, module) = (function.to_owned(), module.map(str::to_owned));
        let (end, took, said) = (None, None, self.said);
        self.calls.push(Call { function, module, pid, start: at, end, counted, took, said });
    }

    fn end(&mut self, function: &str, pid: Option<i32>, at: Stamp<'a>, took: Option<Ns>) {
        let paired = self.by_function.get(function).copied().filter(|index| {
            let known = self.calls[*index].pid;
            pid.is_none() || known.is_none() || pid == known
        });
        if let Some(index) = paired {
            self.by_function.remove(function);
            self.torn.remove(&index);
            let call = &mut self.calls[index];
            let end = at.at.max(call.start.at);
            call.end = Some(Stamp { at: end, ..at });
            call.took = took.filter(|_| self.steady);
            let thread = call.pid;
            if self.open.get(&thread) == Some(&index) {
                self.open.remove(&thread);
            }
        } else if let Some(took) = took {
            let start = Stamp { at: at.at.saturating_sub(took).max(0), ..at };
            let function = function.to_owned();
            let (module, end, counted) = (None, Some(at), false);
            let (took, said) = (None, self.said);
            let call = Call { function, module, pid, start, end, counted, took, said };
            self.calls.push(call);
        } else {
            self.unpaired_ends += 1;
        }
    }
}

fn merge<'a>(by_source: BTreeMap<&'a str, Pairing<'a>>, total: Ns) -> Calls<'a> {
    let mut merged: Calls<'a> = Calls::default();
    let mut index: HashMap<(String, usize), usize> = HashMap::new();
    for (source, pairing) in by_source {
        let broken =
            [(pairing.torn.len(), "have no end"), (pairing.unpaired_ends, "have no start")];
        for (count, what) in broken.into_iter().filter(|(count, _)| *count > 0) {
            merged.warnings.push(format!("{source}: {count} initcalls {what}: records were lost"));
        }
        let mut occurrences: HashMap<String, usize> = HashMap::new();
        for call in pairing.calls {
            let nth = occurrences.entry(call.function.clone()).or_default();
            let key = (call.function.clone(), *nth);
            *nth += 1;
            match index.get(&key) {
                Some(&at) => better(&mut merged.all[at], call),
                None => {
                    index.insert(key, merged.all.len());
                    merged.all.push(call);
                }
            }
        }
    }
    let lost: Vec<&str> =
        merged.all.iter().filter(|c| c.end.is_none()).map(|c| c.function.as_str()).collect();
    if let Some(first) = lost.first() {
        let count = lost.len();
        merged.warnings.push(format!(
            "no source saw the end of {count} initcalls, for example \
            of {first}"
        ));
    }
    merged.all.iter_mut().for_each(Call::settle);
    merged.all.retain(|call| call.start.at <= total);
    merged.all.sort_by_key(|call| (call.start.at, call.end.map(|e| e.at)));
    merged
}

/// Keeps the better of two sights of a call, with what only the other knew.
fn better<'a>(kept: &mut Call<'a>, mut other: Call<'a>) {
    let rank = |c: &Call<'_>| {
        let error = c.end.map_or(c.start.error, |e| e.error.saturating_add(c.start.error));
        (c.end.is_none(), !c.counted, error)
    };
    if rank(&other) < rank(kept) {
        std::mem::swap(kept, &mut other);
    }
    kept.pid = kept.pid.or(other.pid);
    kept.took = kept.took.or(other.took);
    if kept.module.is_none() {
        kept.module = other.module;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at: Ns) -> Stamp<'static> {
        Stamp { at, error: 1, source: "test" }
    }

    #[test]
    fn a_lost_end_is_the_start_of_the_threads_next() {
        let mut pairing = Pairing::default();
        pairing.start("a", None, Some(1), stamp(10), false);
        pairing.start("async", None, Some(9), stamp(15), false);
        pairing.start("b", None, Some(1), stamp(20), false);
        pairing.end("b", Some(1), stamp(30), None);
        pairing.end("c", Some(1), stamp(31), None);
        let ends = |pairing: &Pairing<'_>| -> Vec<Option<Ns>> {
            pairing.calls.iter().map(|c| c.end.map(|e| e.at)).collect()
        };
        assert_eq!(ends(&pairing), [Some(20), None, Some(30)]);
        assert_eq!((pairing.torn.len(), pairing.unpaired_ends), (1, 1));
        pairing.end("a", Some(1), stamp(32), None);
        assert_eq!(ends(&pairing), [Some(32), None, Some(30)], "it was only late");
        assert!(pairing.torn.is_empty());
    }

    #[test]
    fn an_end_that_says_how_long_it_took_needs_no_start() {
        let mut pairing = Pairing::default();
        pairing.end("late", None, stamp(9_000), Some(4_000));
        assert_eq!(pairing.calls[0].start.at, 5_000);
    }

    #[test]
    fn a_late_line_does_not_make_a_call_long() {
        const MS: Ns = 1_000_000;
        let call = |seen: Ns, took: Option<Ns>, said| Call {
            function: "f".into(),
            module: None,
            pid: None,
            start: Stamp { error: MS / 5, ..stamp(50 * MS) },
            end: Some(Stamp { error: MS / 5, ..stamp(50 * MS + seen) }),
            counted: false,
            took,
            said,
        };
        let settled = |mut call: Call<'static>| {
            call.settle();
            let end = call.end.map_or(call.start, |end| end);
            ((end.at - call.start.at), call.start.error)
        };
        // Its lines came 17.25 ms apart, and it says that it took 90 us.
        let lines = 17 * MS + 250_000;
        assert_eq!(settled(call(lines, Some(90_000), true)).0, 90_000);
        assert!(settled(call(lines, Some(90_000), true)).1 > 17 * MS);
        // Both came at once, and it took 9 ms.
        assert_eq!(settled(call(0, Some(9 * MS), true)), (9 * MS, 9 * MS));
        // Within what lines are off by, and by the clock of an old kernel (ns / 1024).
        assert_eq!(settled(call(9 * MS, Some(9 * MS - 300_000), true)), (9 * MS, MS / 5));
        assert_eq!(settled(call(102_400 * MS, Some(100_000 * MS), true)).0, 102_400 * MS);
        // The end was traced after the line of it had been printed.
        assert_eq!(settled(call(12 * MS, Some(44_000), false)).0, 44_000);
        assert_eq!(settled(call(2 * MS, Some(9 * MS), false)), (2 * MS, MS / 5));
        assert_eq!(settled(call(lines, None, true)), (lines, MS / 5), "an early clock loses time");
    }

    #[test]
    fn the_best_sight_wins_and_learns_the_rest() {
        let call = |error, end: bool, pid| Call {
            function: "f".into(),
            module: None,
            pid,
            start: Stamp { error, ..stamp(5) },
            end: end.then(|| stamp(6)),
            counted: false,
            took: None,
            said: false,
        };
        let mut kept = call(1, false, None);
        better(&mut kept, call(50, true, Some(1)));
        assert_eq!((kept.start.error, kept.pid), (50, Some(1)));
        better(&mut kept, call(10, true, None));
        assert_eq!((kept.start.error, kept.pid), (10, Some(1)));
    }
}
