//! Known causes of a slow boot that a recording shows: one file each, registered here.
//!
//! A cause speaks only where a span of the finished timeline is its own, and never of time
//! that the end of the boot did not wait for: what ran beside the tree gives nothing back.
//! What it names is the most that can be gained, since something else may be waited for then.

mod calibration;
mod console;
mod crypto_tests;
mod e2scrub;
mod firmware_menu;
mod grub_key;
mod grub_load;
mod grub_menu;
mod initrds;
mod ipxe_prompt;
mod luks_key;
mod missing_device;
mod network;
mod option_roms;
pub mod registry;
mod syslinux_prompt;
mod systemd_boot_menu;
mod udev_settle;
mod unpack_initrd;

use crate::rules::{INTERACTIVE, UNPACK};
pub use initrds::smaller_initrd;
use registry::Named;
use std::collections::HashMap;
use vmeter_model::span::{bare_name, TIMED_OUT};
use vmeter_model::{Ns, Span, Timeline};

/// A known cause that a recording shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Its name.
    pub cause: Named,
    /// What ends it: a setting, a command.
    pub remedy: &'static str,
    /// The most that this gives back, ns.
    pub at_most: Ns,
    /// Ids of the spans that show it.
    pub spans: Vec<u32>,
}

/// A cause that is looked for.
pub(crate) struct Known {
    /// Its name.
    pub cause: Named,
    /// What ends it in this guest; a cause that nothing ends is none.
    pub remedy: fn(&Timeline) -> Option<&'static str>,
    /// True for the name of a span that is nothing else.
    pub is: fn(&str) -> bool,
    /// Begins the word of the kernel's command line that ends it already.
    pub ended_by: Option<&'static str>,
    /// Begins the names of spans that could not be without it: then it is no cause of a delay.
    pub needed_by: &'static [&'static str],
}

/// Every known cause, in the order in which a boot meets them.
const KNOWN: &[Known] = &[
    firmware_menu::CAUSE,
    option_roms::CAUSE,
    grub_menu::CAUSE,
    grub_key::CAUSE,
    grub_load::CAUSE,
    ipxe_prompt::CAUSE,
    syslinux_prompt::CAUSE,
    systemd_boot_menu::CAUSE,
    calibration::CAUSE,
    crypto_tests::CAUSE,
    unpack_initrd::CAUSE,
    luks_key::CAUSE,
    missing_device::CAUSE,
    udev_settle::CAUSE,
    network::CAUSE,
    e2scrub::CAUSE,
];

/// The known causes that a timeline shows, in the order in which a boot meets them.
pub fn causes(timeline: &Timeline) -> Vec<Cause> {
    let by_id: HashMap<u32, &Span> = timeline.spans.iter().map(|s| (s.id, s)).collect();
    let words = || timeline.command_line.iter().flat_map(|line| line.split_whitespace());
    let ended = |known: &&Known| {
        known.ended_by.is_some_and(|begin| words().any(|word| word.starts_with(begin)))
    };
    let waits: Vec<&Span> = timeline.spans.iter().filter(|span| is_wait(&span.name)).collect();
    let needed = |known: &&Known| {
        let by = |span: &Span| known.needed_by.iter().any(|begin| span.name.starts_with(begin));
        timeline.spans.iter().any(by)
    };
    let known = KNOWN.iter().filter(|known| !ended(known) && !needed(known)).filter_map(|known| {
        let spans: Vec<&Span> = timeline
            .spans
            .iter()
            .filter(|span| (known.is)(bare_name(&span.name)) && !inside(span, known, &by_id))
            .collect();
        let whole: Ns = spans.iter().map(|span| span.len()).sum();
        // Whoever waits for a person meanwhile, or for what has a cause of its own, is not quicker.
        let inside =
            |wait: &&&Span| spans.iter().any(|s| s.start <= wait.start && wait.end <= s.end);
        let others = waits.iter().filter(|wait| !(known.is)(&wait.name));
        let waits: Ns = others.filter(inside).map(|wait| wait.len()).sum();
        let at_most = whole - waits;
        let remedy = (known.remedy)(timeline).filter(|_| at_most > 0)?;
        let spans = spans.iter().map(|span| span.id).collect();
        Some(Cause { cause: known.cause, remedy, at_most, spans })
    });
    known.chain(console::cause(timeline)).collect()
}

/// True for a wait that is a thing of its own, whoever waits.
pub fn is_wait(name: &str) -> bool {
    name.starts_with(INTERACTIVE) || name == UNPACK
}

/// True for a span that is part of another of the same cause.
fn inside(span: &Span, known: &Known, by_id: &HashMap<u32, &Span>) -> bool {
    let parents = std::iter::successors(span.parent, |p| by_id.get(p).and_then(|s| s.parent));
    let mut parents = parents.take(by_id.len()).filter_map(|p| by_id.get(&p));
    parents.any(|parent| (known.is)(bare_name(&parent.name)))
}

/// True for `unit NAME`, in time or not, whose name may have been cut in its middle.
fn is_unit(name: &str, unit: &str) -> bool {
    let name = name.strip_suffix(TIMED_OUT).unwrap_or(name);
    let one = name.strip_prefix("unit ").filter(|found| !found.contains(" or "));
    one.is_some_and(|found| match found.split_once('\u{2026}') {
        Some((head, _)) => unit.starts_with(head) && head.len() >= unit.len() / 2,
        None => found == unit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u32, parent: Option<u32>, name: &str, start: Ns, end: Ns) -> Span {
        let (name, source) = (name.into(), String::new());
        Span { id, parent, name, start, end, insns: None, cpu: None, source, error_ns: 0 }
    }

    #[test]
    fn a_cause_has_the_time_that_was_waited_for_and_no_more() {
        let timeline = Timeline {
            total: 100,
            spans: vec![
                span(0, None, "boot-loader", 0, 20),
                span(1, Some(0), "grub:menu", 5, 15),
                span(2, None, "systemd", 20, 100),
                span(3, Some(2), "unit networking.service", 30, 70),
                span(4, Some(3), "exec /sbin/dhclient", 40, 60),
            ],
            overlapping: vec![span(5, None, "unit e2scrub_reap.service", 25, 99)],
            ..Timeline::default()
        };
        let found: Vec<(&str, Ns)> =
            causes(&timeline).iter().map(|c| (c.cause.id, c.at_most)).collect();
        assert_eq!(found, [("grub-menu", 10), ("network", 40)]);
    }

    #[test]
    fn what_ends_it_fits_beside_its_time_on_a_screen() {
        let words =
            |line: &str| Timeline { command_line: Some(line.into()), ..Timeline::default() };
        for timeline in [Timeline::default(), words("rd.md=0")] {
            let long = |known: &&Known| {
                (known.remedy)(&timeline).is_some_and(|remedy| remedy.chars().count() > 36)
            };
            assert_eq!(KNOWN.iter().find(long).map(|known| known.cause.id), None);
        }
    }

    #[test]
    fn what_is_ended_already_is_no_cause() {
        let spans = vec![span(0, None, "initcall crypto_algapi_init", 0, 10)];
        let mut timeline = Timeline { total: 10, spans, ..Timeline::default() };
        assert_eq!(causes(&timeline).len(), 1);
        timeline.command_line = Some("quiet cryptomgr.notests".into());
        assert_eq!(causes(&timeline), []);
    }

    #[test]
    fn a_name_that_was_cut_is_known_again() {
        let unit = "e2scrub_reap.service";
        assert!(is_unit("unit e2scrub_reap.serv\u{2026}ine ext4 Metadata Check", unit));
        assert!(is_unit("unit e2scrub_reap.service", unit));
        assert!(is_unit("unit e2scrub_reap.service, timed out", unit));
        assert!(!is_unit("unit e2\u{2026}x", unit) && !is_unit("exec e2scrub_reap", unit));
        assert!(!is_unit("unit e2scrub_reap.serv\u{2026}Metadata or x.service", unit));
    }
}
