//! What a session of restores is begun with, and the words of its machines' parameters.

use super::make::Made;
use crate::looks::Repeats;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vmeter_model::MachineSpec;

/// The machine that boots in turn with the others.
pub(super) const BOOT: &str = "cold boot";
/// Parameters of a session's machine: how it restores, and what is done to the page cache.
pub(super) const METHOD: &str = "method";
pub(super) const CACHE: &str = "cache";
pub(super) const PREFETCH: &str = "prefetch";
/// What stands for the folder of a machine's snapshot.
pub(super) const PLACE: &str = "{image}";

/// Which pages are loaded first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefetch {
    /// Those that every warm-up of the same session had mapped at its guest's first answer.
    First,
    /// Those of a list, which is this text.
    List(String),
}

/// What a session is begun with, and what was made for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(super) spec: MachineSpec,
    pub(super) create: Option<String>,
    pub(super) restore: Option<String>,
    pub(super) images: Vec<PathBuf>,
    /// Words of [`super::method::Method`].
    pub(super) methods: Vec<String>,
    /// Words of [`super::image::Cache`].
    pub(super) caches: Vec<String>,
    pub(super) no_boot: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefetch: Option<Prefetch>,
    pub(super) overhead: bool,
    #[serde(flatten)]
    pub(super) repeats: Repeats,
    /// Each snapshot that was made.
    pub(super) made: Vec<Made>,
    /// Ways to restore that were left out, and why.
    pub(super) skipped: Vec<String>,
}
