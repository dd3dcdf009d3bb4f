//! The rules, one file a family of phases, registered here.
//!
//! A family says two things: which moments it can find ([`RuleSet::anchors`]),
//! and, once those are chosen and the phases stand, which spans it sees inside
//! them ([`RuleSet::spans`]).

mod another;
mod builtin_units;
mod edk2;
mod firmware;
pub(crate) mod initcalls;
mod interactive;
pub(crate) mod kernel;
mod kexec;
mod loaded;
mod loader;
mod network;
mod observe;
mod printed_lines;
mod processes;
mod prompt;
mod shutdown;
mod silent;
mod stages;
mod steps;
mod stopping;
mod units;
mod unpack;
mod unseen;
mod verbs;
mod vmm;

use crate::anchors::{Anchors, Candidates};
use crate::facts::RunIndex;
use crate::tree::Growing;
pub(crate) use another::{another, Another, XEN};
pub(crate) use edk2::of_edk2;
pub(crate) use firmware::{of_firmware, part_name, to_rom};
pub(crate) use loader::reach as loader_reach;
pub(crate) use network::NETWORK;
pub(crate) use stages::SYSTEMD;
pub(crate) use verbs::described;

/// A family of phases.
pub(crate) struct RuleSet {
    /// Offers moments.
    pub anchors: for<'a> fn(&RunIndex<'a>, &mut Candidates<'a>),
    /// Places spans.
    pub spans: for<'a> fn(&RunIndex<'a>, &Anchors<'a>, &mut Growing<'a>),
}

/// Every family, in the order in which their spans are placed: what others are
/// part of first, what is cut out of others last.
pub(crate) const RULES: &[RuleSet] = &[
    vmm::RULES,
    firmware::RULES,
    loader::RULES,
    kernel::RULES,
    initcalls::RULES,
    unpack::RULES,
    shutdown::RULES,
    stages::RULES,
    steps::RULES,
    units::RULES,
    stopping::RULES,
    processes::RULES,
    interactive::RULES,
    unseen::RULES,
    printed_lines::RULES,
    kexec::RULES,
    firmware::LOADING,
    observe::RULES,
    another::RULES,
];

/// The families that hold for a guest that goes on from a snapshot as well.
pub(crate) const RESTORED: &[RuleSet] = &[vmm::RULES, observe::RULES];

/// A family without spans of its own.
pub(crate) fn no_spans<'a>(_: &RunIndex<'a>, _: &Anchors<'a>, _: &mut Growing<'a>) {}

/// A family without moments of its own.
pub(crate) fn no_anchors<'a>(_: &RunIndex<'a>, _: &mut Candidates<'a>) {}
