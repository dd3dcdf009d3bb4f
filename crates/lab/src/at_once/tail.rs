//! What VMs that run at once wait for: a wave of theirs that is traced, and the trace explained against that
//! of the wave with the fewest.
//!
//! Tracing takes time, so only warm-ups are traced, which no quantile includes.

use anyhow::Result;
use std::path::{Path, PathBuf};
use vmeter_explain::kind::Kind;
use vmeter_explain::result::{ExplainResult, Finding};
use vmeter_explain::{explain, Options};
use vmeter_host_tracing::record::{executed, of_children, own_threads};
use vmeter_model::run::SourceRecord;
use vmeter_record::recorder::Saved;
use vmeter_record::sources::wave_trace::{self, WaveTrace, FILE};
use vmeter_session::SavedRun;

/// What VMs at once wait for most.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitsFor {
    /// What it is: `lock`, `cpu-contention`, `block-io` and so on, as `vmeter explain` has them.
    pub kind: Kind,
    /// Whose time it is.
    pub who: String,
    /// The call in which a lock is waited for; empty for other kinds.
    pub lock: String,
    /// Share of their time.
    pub share: f64,
    /// One sentence.
    pub summary: String,
    /// True if it is what a wave has beyond the one with the fewest VMs.
    pub beyond: bool,
}

/// Carries out a wave, and records what the kernel does meanwhile into its folder.
pub(super) fn traced<T>(
    folder: &Path,
    wave: impl FnOnce() -> Result<T>,
) -> Result<(T, SourceRecord)> {
    let makers = own_threads();
    let begun = of_children(folder).map_err(|error| error.to_string());
    let done = wave()?;
    let saved = begun.and_then(|instance| {
        let recorded = instance.stop().map_err(|error| error.to_string())?;
        recorded.save(&folder.join(FILE)).map_err(|error| error.to_string())
    });
    Ok((done, wave_trace::record(saved.err(), makers)))
}

/// The trace of a machine's wave, or why there is none.
fn trace(runs: &[SavedRun], label: &str) -> Result<(PathBuf, Vec<i32>), String> {
    let own = |(_, run): &&SavedRun| {
        run.label == label && run.sources.iter().any(|source| source.name == wave_trace::NAME)
    };
    let Some((dir, run)) = runs.iter().find(own) else {
        return Err(
            "vmeter traces only warm-ups, and there were none: use --warmup 1 or more".into()
        );
    };
    let raw = Saved::new(dir, run).raw(&WaveTrace).map_err(|error| error.to_string())?;
    raw.map_or_else(|| Err("no wave was traced".into()), |raw| (*raw).clone())
}

/// What the VMs of the wave labelled `label` wait for, beyond those of the wave `fewest`.
///
/// # Errors
/// In words why that is not known.
pub(super) fn waits_for(
    runs: &[SavedRun],
    label: &str,
    fewest: Option<&str>,
) -> Result<Option<WaitsFor>, String> {
    let (own, mut makers) = trace(runs, label)?;
    let twin = fewest.and_then(|fewest| trace(runs, fewest).ok());
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut recorded = executed(&own).map_err(|error| text(&error))?;
    let vs = twin.map(|(path, threads)| {
        makers.extend(threads);
        path
    });
    if let Some(vs) = &vs {
        recorded.extend(executed(vs).map_err(|error| text(&error))?);
    }
    let options = Options { vs, recorded, makers, ..Options::default() };
    let found = explain(&[own], &options).map_err(|error| text(&error))?;
    Ok(first(&found).map(named))
}

/// What stands out most of what the other trace has not; of all, where there is none.
fn first(found: &ExplainResult) -> Option<&Finding> {
    let beyond = || found.findings.iter().filter(|finding| finding.minus_baseline);
    beyond().next().or_else(|| found.findings.first())
}

fn named(finding: &Finding) -> WaitsFor {
    let lock = finding.way.iter().find_map(|step| step.lock.clone());
    WaitsFor {
        kind: if lock.is_some() { Kind::Lock } else { finding.kind },
        who: finding.subject.clone(),
        lock: lock.unwrap_or_default(),
        share: finding.way.first().map_or(finding.saving_share, |step| step.share),
        summary: finding.summary.clone(),
        beyond: finding.minus_baseline,
    }
}
