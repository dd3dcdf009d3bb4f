//! What is safe in a session's folder, for whoever ends early.

use crate::dirs::{goes_on, runs_in};
use crate::store::AnySession;
use std::path::Path;

/// What is safe in a session's folder, and how to go on with it.
pub(crate) fn saved_in(dir: &Path) -> String {
    let saved = runs_in(dir).count();
    let goes_on = AnySession::open(dir).is_ok_and(|session| goes_on(&session.record.command));
    let dir = vmeter_base::shell::path(dir);
    match (goes_on, saved) {
        (true, _) => format!("{saved} finished runs are saved: continue with --resume {dir}"),
        (false, 0) => "no run was finished".into(),
        (false, _) => format!("{saved} finished runs are saved: vmeter show {dir}"),
    }
}
