//! The machine of a saved session, booted again beside the one that is asked about.
//!
//! What two sessions measured differs by more than their runs' noise: another hour, another
//! load. So the baseline is booted anew, its runs taking turns with the others', wherever its
//! machine can be booted as it was.

use crate::prepare::{prepare, Prepared};
use std::path::{Path, PathBuf};
use vmeter_model::MachineSpec;
use vmeter_session::{cache_dir, changed, identity, trust, Session};

/// Label of the machine that is asked about, and of the baseline's.
pub(super) const LABELS: [&str; 2] = ["default", "baseline"];

/// The baseline's machine, ready to be booted.
///
/// # Errors
/// Why it cannot be booted as it was, in words that follow "the baseline is not booted again:".
pub(super) fn bootable(dir: &Path) -> Result<Prepared, String> {
    let session = super::regression::opened(dir).map_err(|e| format!("{e:#}"))?;
    let Some(machine) = session.record.machines.first() else { return Err("it has none".into()) };
    if !trust::is_ours(&session.dir) {
        return Err(
            "the session's folder is a copy, or comes from another user, or something changed the \
             folder"
                .into(),
        );
    }
    if !leads_here(&session, &machine.spec) {
        return Err(
            "the baseline uses a command line or relative paths, and the current folder is not the \
             folder in which the baseline's session began"
                .into(),
        );
    }
    let cache = cache_dir().map_err(|e| format!("{e:#}"))?;
    let prepared = prepare(LABELS[1], &machine.spec, &cache).map_err(|e| format!("{e:#}"))?;
    let mut changed = changed::changes(&session).map_err(|e| format!("{e:#}"))?.others;
    changed.extend(identity::provenance(
        &machine.label,
        &machine.provenance,
        &prepared.session.provenance,
    ));
    if !changed.is_empty() {
        return Err(format!(
            "these inputs of the baseline's boots changed after the baseline's session: {}",
            changed.join(", ")
        ));
    }
    Ok(prepared)
}

/// True if what the machine's paths and commands mean does not depend on the folder in which
/// the session was begun, or if that is this one.
fn leads_here(session: &Session, spec: &MachineSpec) -> bool {
    let begun = session.record.working_dir.as_deref();
    if begun.is_some() && begun == std::env::current_dir().ok().as_deref() {
        return true;
    }
    let named: Vec<Option<PathBuf>> = vec![
        spec.kernel.clone(),
        spec.initrd.clone(),
        spec.firmware.as_ref().map(PathBuf::from),
        spec.machine.as_ref().map(PathBuf::from),
        spec.vmm.as_ref().map(PathBuf::from),
    ];
    let is_relative = |path: &PathBuf| path.is_relative() && path.components().count() > 1;
    spec.command.is_empty() && !named.iter().flatten().any(is_relative)
}
