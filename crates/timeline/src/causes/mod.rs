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

pub use initrds::smaller_initrd;
use registry::Named;
use std::collections::HashMap;
use vmeter_model::{Identity, Kind, Ns, Span, Timeline};

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
    /// True for a span that is nothing else.
    pub is: fn(Identity<'_>) -> bool,
    /// Begins the word of the kernel's command line that ends it already.
    pub ended_by: Option<&'static str>,
    /// True for a span that could not be without it: then it is no cause of a delay.
    pub needed_by: fn(Identity<'_>) -> bool,
}

/// A cause of which neither is known.
const PLAIN: Known = Known {
    cause: registry::CALIBRATION,
    remedy: |_| None,
    is: |_| false,
    ended_by: None,
    needed_by: |_| false,
};

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
    let all: Vec<(&Span, Identity<'_>)> =
        timeline.spans.iter().map(|span| (span, span.identity())).collect();
    let needed = |known: &&Known| all.iter().any(|(_, of)| (known.needed_by)(*of));
    let known = KNOWN.iter().filter(|known| !ended(known) && !needed(known)).filter_map(|known| {
        let own = all.iter().filter(|(span, of)| (known.is)(*of) && !inside(span, known, &by_id));
        let spans: Vec<&Span> = own.map(|(span, _)| *span).collect();
        let whole: Ns = spans.iter().map(|span| span.len()).sum();
        // Whoever waits for a person meanwhile, or for what has a cause of its own, is not quicker.
        let inside =
            |wait: &&Span| spans.iter().any(|s| s.start <= wait.start && wait.end <= s.end);
        let others = all.iter().filter(|(_, of)| is_wait(*of) && !(known.is)(*of));
        let waits: Ns = others.map(|(wait, _)| *wait).filter(inside).map(Span::len).sum();
        let at_most = whole - waits;
        let remedy = (known.remedy)(timeline).filter(|_| at_most > 0)?;
        let spans = spans.iter().map(|span| span.id).collect();
        Some(Cause { cause: known.cause, remedy, at_most, spans })
    });
    known.chain(console::cause(timeline)).collect()
}

/// True for a wait that is a thing of its own, whoever waits.
pub fn is_wait(of: Identity<'_>) -> bool {
    matches!((of.kind, of.name), (Kind::Person, _) | (Kind::Kernel, "unpack-initrd"))
}

/// True for a span that is part of another of the same cause.
fn inside(span: &Span, known: &Known, by_id: &HashMap<u32, &Span>) -> bool {
    let parents = std::iter::successors(span.parent, |p| by_id.get(p).and_then(|s| s.parent));
    let mut parents = parents.take(by_id.len()).filter_map(|p| by_id.get(&p));
    parents.any(|parent| (known.is)(parent.identity()))
}

/// True for the start of this unit, in time or not, whose name may have been cut in its middle.
fn is_unit(of: Identity<'_>, unit: &str) -> bool {
    let is = match of.name.split_once('\u{2026}') {
        Some((head, _)) => unit.starts_with(head) && head.len() >= unit.len() / 2,
        None => of.name == unit,
    };
    of.kind == Kind::Unit && !of.name.contains(" or ") && is
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u32, parent: Option<u32>, name: &str, start: Ns, end: Ns) -> Span {
        Span { id, parent, name: name.into(), start, end, ..Span::default() }
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
        let is = |name| is_unit(Identity::of(name), unit);
        assert!(is("unit e2scrub_reap.serv\u{2026}ine ext4 Metadata Check"));
        assert!(is("unit e2scrub_reap.service") && is("unit e2scrub_reap.service, timed out"));
        assert!(!is("unit e2\u{2026}x") && !is("exec e2scrub_reap"));
        assert!(!is("unit e2scrub_reap.serv\u{2026}Metadata or x.service"));
    }
}
