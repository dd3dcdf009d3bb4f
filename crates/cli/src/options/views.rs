//! How closely to watch, and how to show what was seen.

use clap::{Args, ValueEnum};
use vmeter_model::run::WatchLevel;

/// How closely to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Watch {
    /// The whole timeline with every initcall, at next to no cost.
    Light,
    /// With instruction counts, by a TCG plugin.
    Full,
    /// Nothing attached.
    None,
}

impl From<Watch> for WatchLevel {
    fn from(watch: Watch) -> Self {
        match watch {
            Watch::Light => WatchLevel::Light,
            Watch::Full => WatchLevel::Full,
            Watch::None => WatchLevel::None,
        }
    }
}

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
