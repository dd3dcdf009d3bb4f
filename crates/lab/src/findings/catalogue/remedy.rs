//! How a user's own machine is rid of a cause: what it takes, what it gives up, and what it should
//! save. `vmeter findings` measures each alone, `vmeter tune` looks for the best of them together.

use super::UserChange;
use crate::findings::user_machine::OwnMachine;
use vmeter_model::tune::{Allow, Keep};

/// How a machine is rid of a cause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remedy {
    /// Why the machine does not have the cause, if it does not.
    pub absent: fn(&OwnMachine) -> Option<String>,
    /// What takes the cause away.
    pub changes: &'static [UserChange],
    /// What is given up by it, in words.
    pub gives_up: &'static str,
    /// What has to be allowed first.
    pub needs: Option<Allow>,
    /// Words of the kernel's command line with which it needs no such thing.
    pub safe_if: &'static [&'static str],
    /// What a user may want to keep, and would not have any more.
    pub breaks: &'static [Keep],
    /// Ids of remedies that it excludes.
    pub conflicts: &'static [&'static str],
    /// Parts of a boot that it makes shorter.
    pub predicts: &'static [Part],
}

impl Remedy {
    /// One that costs nothing.
    pub const FREE: Remedy = Remedy {
        absent: |_| None,
        changes: &[],
        gives_up: "nothing",
        needs: None,
        safe_if: &[],
        breaks: &[],
        conflicts: &[],
        predicts: &[],
    };

    /// True for a machine in which nothing has to be allowed first: it has given up the same already.
    pub fn is_safe_in(&self, machine: &OwnMachine) -> bool {
        self.safe_if.iter().any(|word| machine.kernel_words().any(|w| w == *word))
    }
}

/// A part of a boot, and which share of it a remedy takes away: at least, and at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    /// Spans of this name; a `*` at one end stands for anything.
    Span(&'static str, f64, f64),
    /// What the kernel waited for its console while it printed its log.
    Printing(f64, f64),
    /// Waiting for a time that a word of the kernel's command line says, s: `rootdelay=5`.
    Word(&'static str),
}
