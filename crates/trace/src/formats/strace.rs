//! strace's text with its times: `strace -f -ttt -T`, or with `-tt` or `-r` instead.
//!
//! `[pid] seconds call(arguments) = result <seconds inside>`. A call that another
//! thread's line interrupts is `<unfinished ...>` and later `<... call resumed>`;
//! the two are joined, so a call is handed out when it has ended, with the stamp of
//! its beginning: calls come in the order of their ends.

use super::lines::{any_event, Head, Line};
use crate::event::{Body, Context, Event, NO_CPU};
use crate::format::{EventReader, Kinds, Losses, Order, Tick, TraceFormat, TraceInfo};
use crate::hash::FastMap;
use crate::input::Lines;
use crate::text::stamp;
use crate::{Error, Input};
use std::collections::HashMap;

/// Most calls that are waited for, and most bytes of their arguments.
const MAX_PENDING: usize = 4096;
const MAX_ARGUMENTS: usize = 1024;
/// Most threads whose names are kept, and longest name, bytes (`TASK_COMM_LEN`).
const MAX_NAMES: usize = 1 << 16;
const MAX_NAME: usize = 15;

/// The format.
pub struct Strace;

impl TraceFormat for Strace {
    fn name(&self) -> &'static str {
        "strace"
    }

    fn probe(&self, head: &[u8]) -> bool {
        any_event(head, parse)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        Ok(Box::new(Reader {
            info: TraceInfo::new(self.name(), "realtime", Tick::Nanosecond),
            lines: input.into_lines(),
            kinds: Kinds::default(),
            losses: Losses::default(),
            pending: HashMap::new(),
            names: Names::default(),
            arguments: String::new(),
            result: String::new(),
            since_first: None,
            midnight: (0, 0),
            order: Order::default(),
        }))
    }
}

/// `name` is the call's, `text` what follows its opening bracket.
fn parse(line: &str, _number: u64) -> Line<'_> {
    match split(line) {
        Some((tid, ts, what)) => match call(what) {
            Some((name, text)) => {
                Line::Event(Head { ts, tid, name, text, cpu: NO_CPU, ..Head::default() })
            }
            None => Line::Nothing,
        },
        None => Line::Unreadable,
    }
}

/// Splits `[pid 12] 1.5 rest`, `12 1.5 rest` or `1.5 rest`.
fn split(line: &str) -> Option<(i32, u64, &str)> {
    let (tid, rest) = match line.strip_prefix("[pid") {
        Some(rest) => {
            let (tid, rest) = rest.split_once(']')?;
            (tid.trim().parse().ok()?, rest.trim_start())
        }
        None => {
            let (word, rest) = line.trim_start().split_once(' ')?;
            match word.parse::<i32>() {
                Ok(tid) => (tid, rest.trim_start()),
                Err(_) => (0, line.trim_start()),
            }
        }
    };
    let (seconds, rest) = rest.split_once(' ')?;
    if let Some(ts) = time_of_day(seconds) {
        return Some((tid, ts, rest));
    }
    let (ts, true) = stamp(seconds)? else { return None };
    Some((tid, ts, rest))
}

/// `23:59:59.999999` of `-tt`, ns since midnight; `-t`, without a fraction, is too coarse.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hours, minutes, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let (ns, true) = stamp(rest)? else { return None };
    let fits = parts.next().is_none() && hours < 24 && minutes < 60;
    fits.then_some((hours * 3600 + minutes * 60) * 1_000_000_000 + ns)
}

fn call(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = match text.strip_prefix("<... ") {
        Some(rest) => rest.split_once(' ')?,
        None => text.split_once('(')?,
    };
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (!name.is_empty() && name.len() < 64 && name.bytes().all(word)).then_some((name, rest))
}

struct Reader {
    info: TraceInfo,
    lines: Lines,
    kinds: Kinds,
    losses: Losses,
    /// By thread: the call it is in, its arguments so far, its stamp.
    pending: HashMap<i32, (u32, String, u64)>,
    names: Names,
    arguments: String,
    result: String,
    /// With `-r`, whose first stamp is 0 and each other one counts from the line before: the
    /// sum of the stamps so far. None before the first line; a first stamp that is not 0 is
    /// of `-ttt`.
    since_first: Option<Option<u64>>,
    /// With `-tt`: the stamp before, and the days that have gone by.
    midnight: (u64, u64),
    order: Order,
}

impl Reader {
    /// Takes one line; gives a call that it ends: (kind, thread, stamp, time inside).
    fn line(&mut self) -> Option<(u32, i32, u64, Option<u64>)> {
        let line = self.lines.text();
        // Beside calls strace says `--- SIGCHLD {…} ---` and `+++ exited with 0 +++`.
        let says = |what: &str| {
            call(what).is_some() || ["---", "+++"].iter().any(|begin| what.starts_with(begin))
        };
        let Some((tid, stamp, what)) = split(line).filter(|(.., what)| says(what)) else {
            self.losses.unreadable += u64::from(!line.trim().is_empty());
            return None;
        };
        let stamp = day(&mut self.midnight, stamp);
        let ts = time(&mut self.since_first, stamp);
        self.order.see(ts);
        let (name, text) = call(what)?;
        let kind = self.kinds.id("syscalls", name);
        let mut begin = ts;
        self.arguments.clear();
        let text = if what.starts_with("<... ") {
            if let Some((_, arguments, ts)) = self.pending.remove(&tid) {
                (self.arguments, begin) = (arguments, ts);
            }
            text.strip_prefix("resumed>").unwrap_or(text)
        } else {
            text
        };
        if let Some(arguments) = text.trim_end().strip_suffix("<unfinished ...>") {
            if self.pending.len() < MAX_PENDING {
                let cut = floor(arguments, MAX_ARGUMENTS);
                self.pending.insert(tid, (kind, arguments[..cut].trim_end().to_string(), ts));
            } else {
                self.losses.unreadable += 1;
            }
            return None;
        }
        let (text, duration) = split_duration(text.trim_end());
        let (arguments, result) = text.rsplit_once(" = ").unwrap_or((text, ""));
        let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments);
        self.arguments.push_str(arguments);
        self.result.clear();
        self.result.push_str(result);
        self.names.learn(name, tid, (&self.arguments, &self.result));
        Some((kind, tid, begin, duration))
    }
}

/// What begins the name of a process that has no name but its maker's.
const CHILD: &str = "child of ";

/// Threads' names, by what they execute, what they call themselves and who made them.
#[derive(Debug, Default)]
struct Names(FastMap<i32, Box<str>>);

impl Names {
    /// Learns who a thread is from a call of its own that has ended.
    fn learn(&mut self, call: &str, tid: i32, (arguments, result): (&str, &str)) {
        let returned = result.split_whitespace().next().unwrap_or("");
        let executed = || quoted(arguments).map(|path| path.rsplit('/').next().unwrap_or(path));
        match call {
            "execve" | "execveat" if returned == "0" => self.named(tid, executed()),
            "prctl" if arguments.starts_with("PR_SET_NAME") => self.named(tid, quoted(arguments)),
            "clone" | "clone3" | "fork" | "vfork" => {
                let child = returned.parse().ok().filter(|child: &i32| *child > 0);
                // It may have said already who it is.
                let child = child.filter(|child| !self.0.contains_key(child));
                if let (Some(child), Some(own)) = (child, self.0.get(&tid).cloned()) {
                    // A thread is one of its program; a process may become another one.
                    let same = arguments.contains("CLONE_THREAD") || own.starts_with(CHILD);
                    let name = if same { own } else { format!("{CHILD}{own}").into() };
                    self.named(child, Some(&name));
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, tid: i32, name: Option<&str>) {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return };
        if self.0.len() < MAX_NAMES || self.0.contains_key(&tid) {
            let most = if name.starts_with(CHILD) { CHILD.len() } else { 0 } + MAX_NAME;
            self.0.insert(tid, name[..floor(name, most.min(name.len()))].into());
        }
    }
}

/// Times of day begin anew at midnight; strace's other stamps are no such times.
fn day(midnight: &mut (u64, u64), stamp: u64) -> u64 {
    const DAY: u64 = 24 * 3600 * 1_000_000_000;
    let (before, days) = *midnight;
    let turns = stamp < DAY && before < DAY && before > stamp.saturating_add(DAY / 2);
    let days = days.saturating_add(u64::from(turns));
    *midnight = (stamp, days);
    stamp.saturating_add(days.saturating_mul(DAY))
}

/// What stands between the first two quotation marks.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"').map(|(inside, _)| inside)
}

/// The time of a line by its stamp.
fn time(since_first: &mut Option<Option<u64>>, stamp: u64) -> u64 {
    match since_first.get_or_insert((stamp == 0).then_some(0)) {
        Some(sum) => {
            *sum = sum.saturating_add(stamp);
            *sum
        }
        None => stamp,
    }
}

/// The largest boundary of a character at or below `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn split_duration(text: &str) -> (&str, Option<u64>) {
    let split = text.strip_suffix('>').and_then(|t| t.rsplit_once(" <"));
    match split.and_then(|(rest, seconds)| Some((rest, stamp(seconds)?))) {
        Some((rest, (ns, true))) => (rest, Some(ns)),
        _ => (text, None),
    }
}

impl EventReader for Reader {
    fn info(&self) -> &TraceInfo {
        &self.info
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        let (kind, tid, ts, duration) = loop {
            if !self.lines.advance() {
                self.losses.missing = self.lines.problems();
                self.losses.missing.extend(self.order.said(&self.info.clock));
                self.losses.exceeded = self.lines.exceeded();
                if !self.pending.is_empty() {
                    let open = self.pending.len();
                    self.losses.missing.push(format!("{open} calls had not ended"));
                }
                return None;
            }
            if let Some(call) = self.line() {
                break call;
            }
        };
        Some(Event {
            kind: self.kinds.get(kind),
            ts,
            cpu: NO_CPU,
            tid,
            buffer: 0,
            comm: self.names.0.get(&tid).map(|name| &**name),
            column: Context::Unknown,
            body: Body::Call { arguments: &self.arguments, result: &self.result, duration },
        })
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;

    #[test]
    fn stamps_of_r_count_from_the_line_before() {
        let text = "7      0.000000 getpid() = 7 <0.000001>\n\
             8      0.000150 getpid() = 8 <0.000002>\n\
             7      0.000050 close(3) = 0 <0.000003>\n";
        let input = Input::from_bytes("test", text.as_bytes().to_vec()).expect("bytes");
        let mut reader = open(input).expect("strace");
        let mut times = Vec::new();
        while let Some(event) = reader.next_event() {
            times.push((event.tid, event.ts));
        }
        assert_eq!(times, [(7, 0), (8, 150_000), (7, 200_000)]);
    }

    /// A line that strace does not write is counted, and its stamp is no time.
    #[test]
    fn what_is_no_call_is_not_understood() {
        let text = "7 1795182553.000000 getpid() = 7 <0.000001>\n\
             7 1795182553.000010 --- SIGCHLD {si_signo=SIGCHLD} ---\n\
             1000 12:00:00.1 lorem ipsum\n\
             7 1795182553.000020 +++ exited with 0 +++\n";
        let input = Input::from_bytes("test", text.as_bytes().to_vec()).expect("bytes");
        let mut reader = open(input).expect("strace");
        while reader.next_event().is_some() {}
        assert_eq!((reader.losses().unreadable, reader.losses().missing.len()), (1, 0));
    }

    #[test]
    fn threads_are_named_by_what_they_execute_and_call_themselves() {
        let text =
            "7 1.000000 execve(\"/usr/bin/a-name-of-twenty-bytes\", [\"a\"], 0x7) = 0 <0.000100>\n\
             7 1.000200 clone(child_stack=NULL) = 8 <0.000100>\n\
             8 1.000400 getpid() = 8 <0.000001>\n\
             8 1.000500 prctl(PR_SET_NAME, \"io-0\") = 0 <0.000001>\n\
             8 1.000600 getpid() = 8 <0.000001>\n\
             7 1.000700 execve(\"/nowhere\", [\"a\"], 0x7) = -1 ENOENT (No such file) <0.000100>\n";
        let input = Input::from_bytes("test", text.as_bytes().to_vec()).expect("bytes");
        let mut reader = open(input).expect("strace");
        let mut names = Vec::new();
        while let Some(event) = reader.next_event() {
            names.push(event.comm.unwrap_or("").to_string());
        }
        let own = "a-name-of-twent";
        // It may execute something yet.
        assert_eq!(names, [own, own, "child of a-name-of-twent", "io-0", "io-0", own]);
    }

    #[test]
    fn stamps_of_tt_are_times_of_day() {
        let text = "7 23:59:59.999999 getpid() = 7 <0.000001>\n7 00:00:00.000001 getpid() = 7 <0.000001>\n";
        let input = Input::from_bytes("test", text.as_bytes().to_vec()).expect("bytes");
        let mut reader = open(input).expect("strace");
        let first = reader.next_event().expect("a call").ts;
        assert_eq!(reader.next_event().expect("another").ts - first, 2_000);
    }

    #[test]
    fn calls_are_joined_across_interruptions() {
        let text = "11384 1795225753.551110 openat(AT_FDCWD, \"/dev/null\", O_WRONLY, 0666 <unfinished ...>\n\
             11385 1795225753.551133 ioctl(13, KVM_RUN, 0) = 0 <0.000250>\n\
             11384 1795225753.551179 <... openat resumed>) = 3 <0.000059>\n\
             [pid 7] 1795225753.6 wait4(-1, 0x7f, WNOHANG, NULL) = -1 ECHILD (No child = x) <0.000003>\n\
             11384 1795225753.617771 exit_group(0)   = ?\n\
             11384 1795225753.617871 +++ exited with 0 +++\n";
        let input = Input::from_bytes("test", text.as_bytes().to_vec()).expect("bytes");
        let mut reader = open(input).expect("strace");
        let mut seen = Vec::new();
        while let Some(e) = reader.next_event() {
            let Body::Call { arguments, result, duration } = e.body else { panic!("no call") };
            let call = (e.kind.name.clone(), arguments.to_string(), result.to_string());
            seen.push((e.tid, e.ts % 1_000_000_000, call, duration));
        }
        assert_eq!(seen.len(), 4);
        assert_eq!(seen[0].2 .1, "13, KVM_RUN, 0");
        assert_eq!(seen[0].3, Some(250_000));
        let (tid, ts, (name, arguments, result), duration) = &seen[1];
        assert_eq!(
            (*tid, *ts, name.as_str(), *duration),
            (11384, 551_110_000, "openat", Some(59_000))
        );
        assert_eq!(
            (arguments.as_str(), result.as_str()),
            ("AT_FDCWD, \"/dev/null\", O_WRONLY, 0666", "3")
        );
        assert_eq!(seen[2].0, 7);
        assert_eq!(seen[3].3, None);
        assert!(reader.losses().is_empty());
    }
}
