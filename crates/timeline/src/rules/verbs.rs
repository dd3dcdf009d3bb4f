//! What systemd says of its units on a console or in the kernel's log, word by word
//! (src/core/job.c: `job_start_message_format`, `job_done_message_format`; unit.c).

use crate::systemd::SAYS;

/// Where systemd leaves out the middle of a name.
pub(super) const CUT: char = '\u{2026}';

/// What is said of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Begins,
    Ends,
    /// It ends, and is not there.
    Fails,
    /// Nobody waits for it any more.
    Lapses,
    /// It begins to stop.
    Stops,
    Stopped,
}

use Verb::{Begins, Ends, Fails, Lapses, Stopped, Stops};

const VERBS: &[(&str, Verb)] = &[
    ("Starting ", Begins),
    ("Mounting ", Begins),
    ("Activating swap ", Begins),
    ("Expecting device ", Begins),
    ("Started ", Ends),
    ("Finished ", Ends),
    ("Mounted ", Ends),
    ("Activated swap ", Ends),
    ("Reached target ", Ends),
    ("Listening on ", Ends),
    ("Found device ", Ends),
    ("Set up automount ", Ends),
    ("Failed to start ", Fails),
    ("Failed to mount ", Fails),
    ("Timed out waiting for device ", Lapses),
    ("Timed out starting ", Lapses),
    ("Timed out mounting ", Lapses),
    ("Timed out activating swap ", Lapses),
    ("Stopping ", Stops),
    ("Unmounting ", Stops),
    ("Deactivating swap ", Stops),
    ("Stopped target ", Stopped),
    ("Stopped ", Stopped),
    ("Unmounted ", Stopped),
    ("Deactivated swap ", Stopped),
    ("Unset automount ", Stopped),
    ("Closed ", Stopped),
    ("Removed slice ", Stopped),
];

/// Length of systemd's status, bytes.
pub(super) const STATUS: usize = "[  OK  ] ".len();

/// Where a line of the console goes on after systemd's status, which may follow a prompt.
pub(super) fn status(text: &str) -> Option<usize> {
    ["[  OK  ] ", "[FAILED] ", "[DEPEND] ", "[ TIME ] "]
        .iter()
        .find_map(|s| Some(text.find(s)? + s.len()))
}

/// The name and the description of the unit that a line speaks of, where it gives both.
pub(crate) fn described(text: &str) -> Option<(&str, &str)> {
    let (_, name) = said(text)?;
    let (_, rest) = text.split_once(name)?;
    let description = rest.strip_prefix(" - ")?.trim_end().trim_end_matches('.');
    let whole = !description.is_empty() && !text.contains(CUT);
    whole.then_some((name, description))
}

/// The verb and the unit's name in a line.
pub(super) fn said(text: &str) -> Option<(Verb, &str)> {
    let text = text.strip_prefix(SAYS).unwrap_or(text);
    let text = status(text).map_or(text, |at| &text[at..]).trim_start();
    let (verb, rest) = VERBS.iter().find_map(|(v, verb)| Some((*verb, text.strip_prefix(v)?)))?;
    let name = rest.trim_end().trim_end_matches('.');
    let unit = name.split_once(" - ").map(|(unit, _)| unit);
    // Without a name (`systemd.status_unit_format=description`) the description is all there is.
    let whole = |unit: &&str| unit.contains('.') && !unit.contains([' ', CUT]);
    let name = unit.filter(whole).unwrap_or(name);
    (!name.is_empty()).then_some((verb, name))
}

/// True for two texts of one unit, whose middles may have been left out in different places.
pub(super) fn same(a: &str, b: &str) -> bool {
    match (a.split_once(CUT), b.split_once(CUT)) {
        (None, None) => a == b,
        (Some((head, _)), None) => b.starts_with(head.trim_end()) && b.contains('.'),
        (None, Some((head, _))) => a.starts_with(head.trim_end()) && a.contains('.'),
        (Some((head, tail)), Some((other, end))) => {
            (head.starts_with(other) || other.starts_with(head))
                && (tail.ends_with(end) || end.ends_with(tail))
        }
    }
}

/// True for a device's unit.
pub(super) fn is_device(unit: &str) -> bool {
    unit.ends_with(".device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_systemd_are_read() {
        for (line, verb, name) in [
            ("systemd[1]: Starting kmod.service - Create List...", Begins, "kmod.service"),
            ("Starting ssh.service - OpenBSD Secure Shell server...", Begins, "ssh.service"),
            ("[  OK  ] Finished a-b.service - Planted.", Ends, "a-b.service"),
            ("[FAILED] Failed to start x.service - X.", Fails, "x.service"),
            ("[  OK  ] Started OpenSSH Daemon.", Ends, "OpenSSH Daemon"),
            ("[ TIME ] Timed out waiting for device a.device - /a.", Lapses, "a.device"),
            ("systemd[1]: Timed out starting b.service - B.", Lapses, "b.service"),
            ("systemd[1]: Reached target basic.target - Basic System.", Ends, "basic.target"),
            ("Stopping ssh.service - OpenBSD Secure Shell server...", Stops, "ssh.service"),
            ("[  OK  ] Stopped target getty.target - Login Prompts.", Stopped, "getty.target"),
            (
                "Mounting dev-mqueue.mount\u{2026}Queue File System...",
                Begins,
                "dev-mqueue.mount\u{2026}Queue File System",
            ),
        ] {
            assert_eq!(said(line), Some((verb, name)), "{line}");
        }
        assert_eq!(
            said("planted login: [  OK  ] Finished a.service - A."),
            Some((Ends, "a.service"))
        );
        let cut =
            said("[  OK  ] Started timesyncd.\u{2026}0m - Network Time.").map(|(_, name)| name);
        assert!(cut.is_some_and(|cut| same("timesyncd\u{2026} - Network Time", cut)));
        assert_eq!(said("Detected virtualization qemu."), None);
    }

    #[test]
    fn names_that_are_cut_are_matched() {
        assert!(same(
            "systemd-tmp\u{2026}ate Nodes in /dev",
            "systemd-tmpf\u{2026}eate Nodes in /dev"
        ));
        assert!(!same("systemd-tmp\u{2026}ate Nodes in /dev", "systemd-tmp\u{2026}Directories"));
        assert!(same("systemd-udevd.ser\u{2026}ger for Events", "systemd-udevd.service"));
        assert!(same("cron.service \u{2026}round processing", "cron.service"));
        assert!(!same("a.service", "b.service"));
    }
}
