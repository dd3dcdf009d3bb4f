//! The kinds of experiments that there are. A new one is a folder, and a line here.

use anyhow::Result;
use std::path::Path;
use vmeter_session::failure::usage;
use vmeter_session::{is_saved, Answer, AnySession, Experiment};

/// All kinds, in the order in which they are named to users.
pub const KINDS: &[&dyn Experiment] = &[
    &crate::boot::Kind,
    &crate::bench::Kind,
    &crate::sweep::Kind,
    &crate::range::Kind,
    &crate::findings::Kind,
    &crate::tune::Kind,
    &crate::look::Kind,
    &crate::next::Kind,
    &crate::restore::Kind,
    &crate::memory::Kind,
    &vmeter_dirty::Kind,
    &vmeter_irq::Kind,
    &vmeter_migrate::Kind,
];

/// The kind of a session.
///
/// # Errors
/// Class usage: none that this vmeter knows.
pub fn of(session: &AnySession) -> Result<&'static dyn Experiment> {
    let name = &session.record.command;
    KINDS.iter().copied().find(|kind| kind.kind() == name).ok_or_else(|| {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.kind()).collect();
        usage(format!(
            "{}: a session of kind {name:?}, which this vmeter does not know; it knows {}",
            session.dir.display(),
            known.join(", ")
        ))
    })
}

/// What the session saved in `dir` comes to, whatever its kind.
///
/// # Errors
/// Class usage: no session, of no known kind, or without a finished run.
pub fn answer(dir: &Path) -> Result<Box<dyn Answer>> {
    marked(dir, &[])
}

/// As [`answer`], with moments to be marked, each `NAME=REGEX`.
///
/// # Errors
/// As [`answer`], and [`Experiment::marked`].
pub fn marked(dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
    let session = AnySession::open(dir)?;
    let kind = of(&session)?;
    if session.record.machines.is_empty() {
        return Err(session.no_runs(&[]));
    }
    let answer = kind.marked(&session.dir, marks)?;
    // What lacks runs that were taken away meanwhile is no answer.
    if !is_saved(&session.dir) {
        let dir = session.dir.display();
        return Err(usage(format!("{dir} was removed while it was read")));
    }
    Ok(answer)
}
