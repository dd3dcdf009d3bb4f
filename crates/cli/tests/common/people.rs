//! The guests that people have, as `scripts/guests.sh` makes them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The guests' folder, made if need be; none, with a line that says so, where it can't be.
pub fn made() -> Option<PathBuf> {
    if !super::is_long() {
        println!("skipped: boots of the guests that people have; VMETER_LONG=1 runs them");
        return None;
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = cache?.join("vmeter/guests");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/guests.sh");
    let output = Command::new(script).arg(&folder).output().expect("sh");
    if !output.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    Some(folder)
}
