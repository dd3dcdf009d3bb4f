//! Whether a guest's first process is systemd.
//!
//! Any program can print what systemd would. Its own lines come through the kernel's log, which
//! gives each a stamp (`systemd[1]: `, as the writer's name and number), while it is early or
//! where it is told to (src/basic/log.c: `log_open`, `write_to_kmsg`); what it says on the
//! console of its units has no name in front.

use crate::lines::Line;
use crate::patterns::On;
use crate::processes::{base, Image, Processes};
use crate::rules::described;
use std::collections::HashSet;

/// What it writes its lines as.
pub(crate) const SAYS: &str = "systemd[1]: ";
/// What only it says of itself: its version, where it is, what it was told, what it begins with.
const OF_ITSELF: &[&str] = &[
    "systemd ",
    "Detected architecture ",
    "Detected virtualization ",
    "Hostname set to ",
    "Queued start job for default target ",
    "Running in initrd",
    "Running in initial RAM disk",
    "Startup finished in ",
    "Switching root",
];
/// Of other lines so many are needed.
const LINES: usize = 3;
/// So many of those that it prints on the console of its units, with name and description.
const UNITS: usize = 10;
/// Programs that it brings and runs itself.
const PROGRAMS: &[&str] = &["/lib/systemd/", "/usr/lib/systemd/"];
/// What interprets an init that is a script.
const SHELLS: &[&str] = &["sh", "ash", "bash", "busybox", "dash", "ksh", "mksh", "zsh"];

/// True if a line of this name can be its own: the kernel's log stamps its lines, unless it was
/// told to stamp none.
pub(crate) fn can_be_logged(line: &Line<'_>, stamps: bool) -> bool {
    !line.console || line.stamp.is_some() || !stamps
}

/// True if the console shows the stamps of the kernel's log, or would: where it shows no line of
/// a log that was read (`quiet`), what has none is nobody's but a program's.
pub(crate) fn stamps(lines: &[Line<'_>]) -> bool {
    if lines.iter().any(|line| line.console && line.stamp.is_some()) {
        return true;
    }
    let of_log = |l: &&Line<'_>| !l.console && l.on == On::Kernel;
    let logged: HashSet<&str> = lines.iter().filter(of_log).map(|l| l.text.trim()).collect();
    let shown = |line: &Line<'_>| line.console && logged.contains(line.text.trim());
    let long = |line: &&Line<'_>| line.text.len() >= LONG;
    !logged.is_empty() && !lines.iter().filter(long).any(shown)
}

/// A line as long as this is not the same as another by chance, bytes.
const LONG: usize = 20;

/// True if enough says that it is there.
pub(crate) fn is_there(lines: &[Line<'_>], processes: &Processes<'_>) -> bool {
    let init: Vec<&Image<'_>> =
        processes.all.iter().filter(|p| p.pid == 1).flat_map(|p| &p.images).collect();
    let its = |file: &str| PROGRAMS.iter().any(|folder| file.starts_with(folder));
    let runs = |p: &crate::processes::Process<'_>| {
        p.unit.is_some() || p.images.iter().any(|image| its(image.file))
    };
    if processes.all.iter().any(runs) || init.iter().any(|i| base(i.file) == "systemd") {
        return true;
    }
    if !init.is_empty() && init.iter().all(|image| is_script(image)) {
        return false;
    }
    let of_unit =
        |l: &&Line<'_>| l.console && l.text.starts_with('[') && described(l.text).is_some();
    if lines.iter().filter(of_unit).nth(UNITS - 1).is_some() {
        return true;
    }
    let stamps = stamps(lines);
    let mut others = 0;
    lines.iter().filter(|line| can_be_logged(line, stamps)).any(|line| {
        let Some(said) = line.text.strip_prefix(SAYS) else { return false };
        others += 1;
        others >= LINES || OF_ITSELF.iter().any(|of| said.starts_with(of))
    })
}

/// True for an image that a shell interprets.
pub(crate) fn is_script(image: &Image<'_>) -> bool {
    image.arguments.len() > 1
        && image.arguments.first().is_some_and(|first| SHELLS.contains(&base(first)))
}
