//! What a boot's time was spent on: a tree of spans without gaps.

use crate::identity::Identity;
use crate::process::Process;
use crate::time::Ns;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the time that nothing explains. It is always a row.
pub const UNATTRIBUTED: &str = "unattributed";

/// The name of the time in which vmeter itself held the VMM. What it holds it for once its guest
/// is done is no part of a run ([`crate::run::RunRecord::looked_ns`]).
pub const OBSERVE: &str = "vmeter:observe";

/// The name of the time after the VMM's end, until what started it ends as well: no part of a boot.
pub const AFTER: &str = "launcher:after";

/// Counts of one run by name: `pci_config_reads`, `guest_insns`, `console_bytes`, …
pub type Counts = BTreeMap<String, u64>;

/// A stretch of time with a name.
///
/// Spans form a tree. Inside a span its children do not overlap, and what they
/// leave open is filled with a child named `unattributed` (or, where the parent
/// itself names the work, with a child of the parent's own name), so the leaves
/// tile the whole run: their lengths add up to its total exactly, in ns.
/// Activities that overlap others (work of a second CPU) are not in the tree;
/// they are in [`Timeline::overlapping`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Number of the span in its timeline.
    pub id: u32,
    /// The span it is part of; none for the root.
    pub parent: Option<u32>,
    /// Name, e.g. `bios:overhead`, `initcall pci_subsys_init`.
    pub name: String,
    /// Begin, ns after exec.
    pub start: Ns,
    /// End, ns after exec.
    pub end: Ns,
    /// Guest instructions executed in it, where counted.
    pub insns: Option<u64>,
    /// CPU time that what it is named for had in it, ns, where the guest says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Ns>,
    /// Source that its boundaries come from.
    pub source: String,
    /// How far off its boundaries can be, ns.
    pub error_ns: Ns,
}

impl Span {
    /// What its name says it is.
    pub fn identity(&self) -> Identity<'_> {
        Identity::of(&self.name)
    }

    /// Length in ns.
    pub fn len(&self) -> Ns {
        self.end - self.start
    }

    /// True for a span of no length.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The kernel's log on a console: what whoever logs waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printing {
    /// Lines.
    pub lines: u64,
    /// Their bytes, without ends of lines.
    pub bytes: u64,
    /// From when each was logged until its last byte had arrived, ns, together.
    pub time: Ns,
}

/// The whole of one run, accounted for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of the run, ns: exec of the VMM to its exit (or the ready point).
    pub total: Ns,
    /// The tree, parents before children, in order of start.
    pub spans: Vec<Span>,
    /// Activities beside the tree, on other CPUs or asynchronous; `parent` is none.
    pub overlapping: Vec<Span>,
    /// Moments worth showing: (ns after exec, text), e.g. log lines of note.
    pub marks: Vec<(Ns, String)>,
    /// Moments that the user named (`--mark`), ns after exec: the first of each name.
    #[serde(default)]
    pub named_marks: Vec<(String, Ns)>,
    /// Processes of the guest, in order of their starts.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// The kernel's command line, where its log or the VMM's says it.
    #[serde(default)]
    pub command_line: Option<String>,
    /// What of the kernel's log was printed on a console, if anything was seen of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printing: Option<Printing>,
    /// Counts of the run.
    pub counts: Counts,
    /// Phase lengths: top-level names and their ns, every phase once, `unattributed` always.
    pub phases: Vec<(String, Ns)>,
    /// What could not be understood or was missing, in words for the user.
    pub warnings: Vec<String>,
}

impl Timeline {
    /// Spans without children, in order of time.
    pub fn leaves(&self) -> impl Iterator<Item = &Span> {
        let parents: std::collections::HashSet<u32> =
            self.spans.iter().filter_map(|s| s.parent).collect();
        let mut leaves: Vec<&Span> =
            self.spans.iter().filter(|s| !parents.contains(&s.id)).collect();
        leaves.sort_by_key(|s| (s.start, s.end, s.id));
        leaves.into_iter()
    }

    /// How long what started the VMM went on after its end, ns.
    pub fn after(&self) -> Ns {
        self.leaves().filter(|s| s.name == AFTER).map(Span::len).sum()
    }

    /// Share of the time up to the VMM's end inside leaf spans that have a name other than
    /// `unattributed`: what one reads on a screen as "named". Both shares of that time add up to 1.
    pub fn coverage(&self) -> f64 {
        let whole = self.total - self.after();
        if whole <= 0 {
            return 0.0;
        }
        let nameless = [UNATTRIBUTED, AFTER];
        let named = self.leaves().filter(|s| !nameless.contains(&s.name.as_str())).map(Span::len);
        named.sum::<Ns>() as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_vmms_end_is_neither_named_nor_unnamed() {
        let span = |id, name: &str, start, end| Span {
            id,
            name: name.into(),
            start,
            end,
            ..Span::default()
        };
        let spans = vec![span(0, "vmm:init", 0, 30), span(1, UNATTRIBUTED, 30, 40)];
        let mut timeline = Timeline { total: 40, spans, ..Timeline::default() };
        assert_eq!((timeline.coverage(), timeline.after()), (0.75, 0));
        timeline.spans.push(span(2, AFTER, 40, 100));
        timeline.total = 100;
        assert_eq!((timeline.coverage(), timeline.after()), (0.75, 60));
    }
}
