//! Lines of a console and processes of user space, from nobody's guest.

use super::{event, record, MS};
use vmeter_model::{Event, EventKind, Moment, Ns, Span, Timeline};
use vmeter_timeline::{build, verify};

pub fn checked(events: &[Event], total: Ns) -> Timeline {
    let timeline = build(events, &record(total));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Of a run that ends at this line, at its total.
pub fn until(events: &[Event], total: Ns, text: &str) -> Timeline {
    let mut run = record(total);
    run.moments.push((total, Moment::Ready));
    let ready = event(total, 0, "console", EventKind::ReadyLine { text: text.into() });
    let timeline = build(&[events, &[ready]].concat(), &run);
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Names with lengths in ms, of what begins so.
pub fn lengths<'a>(spans: &'a [Span], begins: &str) -> Vec<(&'a str, Ns)> {
    let own = spans.iter().filter(|span| span.name.starts_with(begins));
    own.map(|span| (span.name.as_str(), span.len() / MS)).collect()
}

pub fn line(at: Ns, text: &str) -> Event {
    event(
        at * MS,
        MS / 10,
        "console",
        EventKind::ConsoleLine { text: text.into(), end: (at + 1) * MS, later: Vec::new() },
    )
}

/// Events of processes: at (ms), what.
pub fn processes(whats: Vec<(Ns, EventKind)>) -> Vec<Event> {
    let init = EventKind::ProcessExec { pid: 1, file: "/init".into() };
    let mut events = vec![event(100 * MS, 0, "ftrace", init)];
    events.extend(whats.into_iter().map(|(at, what)| event(at * MS, 0, "ftrace", what)));
    events
}

pub fn fork(pid: i32, parent: i32) -> EventKind {
    EventKind::ProcessFork { pid, parent, thread: false }
}

pub fn exec(pid: i32, file: &str) -> EventKind {
    EventKind::ProcessExec { pid, file: file.into() }
}

pub fn exit(pid: i32) -> EventKind {
    EventKind::ProcessExit { pid, comm: "x".into() }
}

pub fn wait(pid: i32) -> EventKind {
    EventKind::ProcessWait { pid, child: None }
}

pub fn reap(pid: i32, by: i32) -> EventKind {
    EventKind::ProcessReap { pid, by, status: Some(0), cpu_ns: 5_000_000, group: String::new() }
}

pub fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).filter(|name| name.starts_with("exec ")).collect()
}
