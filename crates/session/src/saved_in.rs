//! What is safe in a session's folder, for whoever ends early.

use crate::dirs::{goes_on, runs_in};
use crate::store::AnySession;
use std::path::Path;

/// What is safe in a session's folder, and how to go on with it.
pub(crate) fn saved_in(dir: &Path) -> String {
    let saved = runs_in(dir).count();
    let goes_on = AnySession::open(dir).is_ok_and(|session| goes_on(&session.record.command));
    let (dir, are_saved) = (vmeter_base::shell::path(dir), are_saved(saved));
    match (goes_on, saved) {
        (true, _) => format!("{are_saved}: continue with --resume {dir}"),
        (false, 0) => "no run was finished".into(),
        (false, _) => format!("{are_saved}: vmeter show {dir}"),
    }
}

/// How many finished runs are safe, in words.
pub fn are_saved(finished: usize) -> String {
    match finished {
        1 => "1 finished run is saved".into(),
        _ => format!("{finished} finished runs are saved"),
    }
}
