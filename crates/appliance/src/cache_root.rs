//! Where vmeter's cache is.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/vmeter`, or `~/.cache/vmeter`; none when neither variable is an absolute path.
pub(crate) fn of_variables() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Some(base?.join("vmeter"))
}
