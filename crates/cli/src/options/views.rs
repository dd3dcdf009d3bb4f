//! How to show what was seen.

use clap::Args;

/// Views of a boot besides the summary.
#[derive(Debug, Clone, Copy, Args)]
pub struct Views {
    /// Show all tables (default: one screen of 24 lines).
    #[arg(long)]
    pub long: bool,
    /// Show all activities, longest first, with their time on the critical path. The column `self`
    /// is the part of that time that no named child span covers.
    #[arg(long)]
    pub blame: bool,
    /// Show the chain of steps that determined when the boot ended, from the end back to the start.
    #[arg(long)]
    pub critical_chain: bool,
    /// Show the tree of spans, and below it the activities that are not on the critical path.
    #[arg(long)]
    pub tree: bool,
}

impl From<Views> for vmeter_session::Views {
    fn from(views: Views) -> Self {
        let Views { long, blame, critical_chain, tree } = views;
        vmeter_session::Views { long, blame, critical_chain, tree }
    }
}
