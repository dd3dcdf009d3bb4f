//! The moments that every boot passes in the same order, found from whatever
//! evidence there is, and reconciled where sources disagree.

use crate::input::Seen;
use vmeter_model::time::seconds;
use vmeter_model::Ns;

/// A moment of a boot; the order here is the order in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Anchor {
    /// A wrapper's image is in place, which will execute the VMM.
    Wrapper,
    /// The VMM's image is in place: its dynamic linker starts.
    ExecDone,
    /// The VMM's own code starts (`main`, or `AT_ENTRY` where there is no `main` to see).
    Main,
    /// The VMM is ready, and waits for somebody to start its machine (QEMU's -S, a VMM's API).
    Waits,
    /// A vCPU executes its first instruction.
    Reset,
    /// The firmware hands over to a boot loader.
    Loader,
    /// A hypervisor begins, which starts a kernel.
    Hypervisor,
    /// The first instruction of the kernel's image, whichever entry it is.
    KernelFirst,
    /// The decompressor starts.
    Decompress,
    /// The kernel proper starts.
    KernelEntry,
    /// The first initcall starts.
    Initcalls,
    /// The kernel hands over to init.
    Userspace,
    /// A program is there: the console has its first line.
    Programs,
    /// The kernel panicked.
    Panic,
    /// The guest begins to shut down.
    Shutdown,
    /// The kernel gives way to another: it starts one itself, or has the machine reset.
    Kexec,
    /// The VMM begins to exit.
    Exiting,
    /// The VMM is gone, and a wrapper that waited for it goes on.
    Resumed,
}

impl Anchor {
    /// Every anchor in order.
    pub(crate) const ALL: [Anchor; 18] = [
        Anchor::Wrapper,
        Anchor::ExecDone,
        Anchor::Main,
        Anchor::Waits,
        Anchor::Reset,
        Anchor::Loader,
        Anchor::Hypervisor,
        Anchor::KernelFirst,
        Anchor::Decompress,
        Anchor::KernelEntry,
        Anchor::Initcalls,
        Anchor::Userspace,
        Anchor::Programs,
        Anchor::Panic,
        Anchor::Shutdown,
        Anchor::Kexec,
        Anchor::Exiting,
        Anchor::Resumed,
    ];

    /// In words, for warnings.
    fn words(self) -> &'static str {
        match self {
            Anchor::Wrapper => "the wrapper's exec",
            Anchor::ExecDone => "the end of the VMM's exec",
            Anchor::Main => "the VMM's main",
            Anchor::Waits => "the start of the VMM's wait for a command that starts its machine",
            Anchor::Reset => "the vCPU's first instruction",
            Anchor::Loader => "the start of the boot loader",
            Anchor::Hypervisor => "the start of the hypervisor",
            Anchor::KernelFirst => "the kernel image's first instruction",
            Anchor::Decompress => "the start of the decompressor",
            Anchor::KernelEntry => "the kernel's entry",
            Anchor::Initcalls => "the first initcall",
            Anchor::Userspace => "the start of init",
            Anchor::Programs => "the first line that a program printed on the console",
            Anchor::Panic => "the kernel's panic",
            Anchor::Shutdown => "the start of the shutdown",
            Anchor::Kexec => "the start of a second kernel",
            Anchor::Exiting => "the VMM's exit",
            Anchor::Resumed => "the wrapper's own end",
        }
    }
}

/// A moment with its error and who says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp<'a> {
    /// ns after exec.
    pub at: Ns,
    /// How far off, ns.
    pub error: Ns,
    /// Who says so; empty for the run's own ends.
    pub source: &'a str,
}

impl<'a> Stamp<'a> {
    /// Where an event is.
    pub(crate) fn of(seen: &Seen<'a>) -> Self {
        Stamp { at: seen.at, error: seen.error, source: seen.source }
    }
}

/// How directly a source saw an anchor; the lower is believed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// It is the very thing.
    Exact,
    /// Something that happens next to it.
    Near,
    /// A line of text.
    Text,
}

/// What the rules offer for one anchor.
#[derive(Debug, Default)]
pub(crate) struct Candidates<'a> {
    offers: Vec<(Anchor, Trust, Stamp<'a>)>,
}

impl<'a> Candidates<'a> {
    /// Offers a moment for an anchor.
    pub(crate) fn offer(&mut self, anchor: Anchor, trust: Trust, stamp: Stamp<'a>) {
        self.offers.push((anchor, trust, stamp));
    }

    /// True if something was offered for it.
    pub(crate) fn has(&self, anchor: Anchor) -> bool {
        self.best(anchor).is_some()
    }

    /// What was offered for it that is off by the least.
    pub(crate) fn best(&self, anchor: Anchor) -> Option<Stamp<'a>> {
        let offers = self.offers.iter().filter(|offer| offer.0 == anchor);
        offers.map(|offer| offer.2).min_by_key(|stamp| stamp.error)
    }

    /// Leaves out what evidence shows to be something else.
    pub(crate) fn retain(&mut self, is: impl Fn(Anchor, &Stamp<'a>) -> bool) {
        self.offers.retain(|(anchor, _, stamp)| is(*anchor, stamp));
    }

    /// An anchor was after a moment, where `earliest` of an offer says so: it is off by no more than what
    /// lies between.
    pub(crate) fn bound(&mut self, anchor: Anchor, earliest: impl Fn(Ns) -> Option<Ns>) {
        for (_, _, stamp) in self.offers.iter_mut().filter(|offer| offer.0 == anchor) {
            if let Some(earliest) = earliest(stamp.at) {
                stamp.error = stamp.error.min(stamp.at - earliest);
            }
        }
    }

    /// The offers for one anchor, the most trusted first.
    fn of(&self, anchor: Anchor) -> Vec<(Trust, Stamp<'a>)> {
        let mut of: Vec<(Trust, Stamp<'a>)> =
            self.offers.iter().filter(|o| o.0 == anchor).map(|o| (o.1, o.2)).collect();
        of.sort_by_key(|(trust, stamp)| (*trust, stamp.error, stamp.at));
        of
    }
}

/// The anchors that were found, in order.
#[derive(Debug, Default)]
pub(crate) struct Anchors<'a> {
    found: [Option<Stamp<'a>>; Anchor::ALL.len()],
}

impl<'a> Anchors<'a> {
    /// When an anchor was, if anything says so.
    pub(crate) fn get(&self, anchor: Anchor) -> Option<Stamp<'a>> {
        self.found[anchor as usize]
    }

    /// Moves or removes an anchor.
    pub(crate) fn set(&mut self, anchor: Anchor, stamp: Option<Stamp<'a>>) {
        self.found[anchor as usize] = stamp;
    }

    /// The first anchor after `anchor`, or of all, that was found.
    pub(crate) fn next(&self, anchor: Option<Anchor>) -> Option<Stamp<'a>> {
        let after = anchor.map_or(0, |anchor| anchor as usize + 1);
        self.found[after..].iter().flatten().next().copied()
    }

    /// Chooses among the offers and puts the chosen in order.
    ///
    /// The most trusted are placed first. One that then comes out of order by no
    /// more than the two errors is moved to its neighbour; by more, it is left
    /// out with a warning and the next best offer is tried.
    pub(crate) fn choose(candidates: &Candidates<'a>, warnings: &mut Vec<String>) -> Self {
        let mut open: Vec<(Anchor, Vec<(Trust, Stamp<'a>)>)> = Anchor::ALL
            .iter()
            .map(|anchor| (*anchor, candidates.of(*anchor)))
            .filter(|(_, offers)| !offers.is_empty())
            .collect();
        open.sort_by_key(|(anchor, offers)| (offers[0].0, offers[0].1.error, *anchor));
        let mut anchors = Anchors::default();
        for (anchor, offers) in open {
            let fitting = offers.iter().find_map(|(_, offer)| anchors.fit(anchor, *offer));
            if fitting.is_none() {
                let (_, best) = offers[0];
                warnings.push(anchors.conflict(anchor, best));
            }
            anchors.set(anchor, fitting);
        }
        anchors
    }

    fn neighbours(&self, anchor: Anchor) -> (Option<Stamp<'a>>, Option<Stamp<'a>>) {
        let index = anchor as usize;
        let before = self.found[..index].iter().flatten().last().copied();
        let after = self.found[index + 1..].iter().flatten().next().copied();
        (before, after)
    }

    fn fit(&self, anchor: Anchor, offer: Stamp<'a>) -> Option<Stamp<'a>> {
        let (before, after) = self.neighbours(anchor);
        let moved = |to: Stamp<'a>| {
            let off = (to.at - offer.at).abs();
            (off <= to.error.saturating_add(offer.error)).then_some(Stamp { at: to.at, ..offer })
        };
        match (before, after) {
            (Some(before), _) if offer.at < before.at => moved(before),
            (_, Some(after)) if offer.at > after.at => moved(after),
            _ => Some(offer),
        }
    }

    fn conflict(&self, anchor: Anchor, offer: Stamp<'a>) -> String {
        let (before, after) = self.neighbours(anchor);
        let (which, against) = match before.filter(|before| offer.at < before.at) {
            Some(before) => ("an earlier", Some(before)),
            None => ("a later", after),
        };
        format!(
            "vmeter left out {} at {:.6} s ({}). It is out of order: {which} moment of the boot is \
             at {}",
            anchor.words(),
            seconds(offer.at),
            offer.source,
            against.map_or_else(String::new, |s| format!("{:.6} s ({})", seconds(s.at), s.source)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at: Ns, error: Ns) -> Stamp<'static> {
        Stamp { at, error, source: "test" }
    }

    #[test]
    fn disorder_within_the_errors_is_mended_and_beyond_is_said() {
        let mut candidates = Candidates::default();
        candidates.offer(Anchor::Main, Trust::Exact, stamp(100, 0));
        candidates.offer(Anchor::ExecDone, Trust::Exact, stamp(105, 10));
        candidates.offer(Anchor::Reset, Trust::Near, stamp(20, 1));
        let mut warnings = Vec::new();
        let anchors = Anchors::choose(&candidates, &mut warnings);
        assert_eq!(anchors.get(Anchor::ExecDone).map(|s| s.at), Some(100));
        assert!(anchors.get(Anchor::Reset).is_none());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("first instruction"), "{warnings:?}");
    }

    #[test]
    fn the_second_best_offer_replaces_one_that_cannot_be() {
        let mut candidates = Candidates::default();
        candidates.offer(Anchor::Main, Trust::Exact, stamp(100, 0));
        candidates.offer(Anchor::Reset, Trust::Near, stamp(20, 1));
        candidates.offer(Anchor::Reset, Trust::Text, stamp(150, 30));
        let mut warnings = Vec::new();
        let anchors = Anchors::choose(&candidates, &mut warnings);
        assert_eq!(anchors.get(Anchor::Reset).map(|s| s.at), Some(150));
        assert!(warnings.is_empty());
    }
}
