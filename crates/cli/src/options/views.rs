//! How to show what was seen.

use clap::Args;

/// Views of a boot besides the summary.
#[derive(Debug, Clone, Copy, Args)]
pub struct Views {
    /// List all activities, longest first.
    #[arg(long)]
    pub blame: bool,
    /// Show the chain of what the end of the boot waited for.
    #[arg(long)]
    pub critical_chain: bool,
    /// Show the tree of spans.
    #[arg(long)]
    pub tree: bool,
}

impl From<Views> for vmeter_session::Views {
    fn from(views: Views) -> Self {
        let Views { blame, critical_chain, tree } = views;
        vmeter_session::Views { blame, critical_chain, tree }
    }
}
