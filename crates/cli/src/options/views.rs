//! How to show what was seen.

use clap::Args;

/// Views of a boot besides the summary.
#[derive(Debug, Clone, Copy, Args)]
pub struct Views {
    /// Show all tables (default: one screen of 24 lines).
    #[arg(long)]
    pub long: bool,
    /// Show all activities, longest first: the time on the critical path, and of that the time
    /// outside of named parts (self).
    #[arg(long)]
    pub blame: bool,
    /// Show what the end of the boot waited for, step by step, back to the start.
    #[arg(long)]
    pub critical_chain: bool,
    /// Show the tree of spans, and what ran beside it.
    #[arg(long)]
    pub tree: bool,
}

impl From<Views> for vmeter_session::Views {
    fn from(views: Views) -> Self {
        let Views { long, blame, critical_chain, tree } = views;
        vmeter_session::Views { long, blame, critical_chain, tree }
    }
}
