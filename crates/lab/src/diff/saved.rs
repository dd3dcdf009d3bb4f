//! The two sides of `vmeter diff`, out of saved sessions of whatever kind boots.

use super::side::Side;
use super::{compare_sides, listed};
use crate::ends::Ends;
use crate::kinds;
use anyhow::Result;
use std::path::Path;
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::run::RunRecord;
use vmeter_model::sweep::DiffResult;
use vmeter_session::failure::usage;
use vmeter_session::{is_saved, read_run, AnySession, Session};

/// Compares two saved machines: each a session's folder, `FOLDER#LABEL` for one machine of
/// several, or the folder of a single run.
///
/// # Errors
/// Class usage, for what is no saved session or run, or holds no boots.
pub fn diff(a: &str, b: &str, argv: Vec<String>) -> Result<DiffResult> {
    let (a, b) = (open(a)?, open(b)?);
    if let Some(why) = Ends::unlike((&a.name, &a.ends), (&b.name, &b.ends)) {
        return Err(usage(format!("not compared, for their runs did not end alike: {why}")));
    }
    let mut result = compare_sides(&a, &b, 1);
    result.envelope = Envelope { command: "diff".into(), argv, ..result.envelope };
    result.envelope.started_at = vmeter_session::host::now();
    Ok(result)
}

/// The session in a folder, if its runs are boots.
fn boots_in(folder: &Path) -> Result<Session> {
    let kind = kinds::of(&AnySession::open(folder)?)?;
    kind.boots().map_err(|why| {
        usage(format!("{} is a session of vmeter {}: {why}", folder.display(), kind.kind()))
    })?;
    Session::open(folder)
}

/// Finds what `text` names: a session's folder, `FOLDER#LABEL` for one machine of a
/// sweep or bench, or the folder of a single run in it.
///
/// # Errors
/// Class usage, with the labels that there are.
fn open(text: &str) -> Result<Side> {
    let path = Path::new(text);
    if path.join("run.json").is_file() {
        return of_run(text, path);
    }
    let (folder, label) = match text.rsplit_once('#') {
        Some((folder, label)) if !path.exists() => (Path::new(folder), Some(label)),
        _ => (path, None),
    };
    let session = boots_in(folder)?;
    let labels: Vec<&str> = session.record.machines.iter().map(|m| m.label.as_str()).collect();
    let label = match (label, labels.as_slice()) {
        (Some(label), _) if labels.contains(&label) => label.to_owned(),
        (None, [only]) => (*only).to_owned(),
        (Some(label), _) => {
            return Err(usage(format!(
                "{}: there is no {label:?} in it, only {}",
                folder.display(),
                listed(labels.into_iter())
            )))
        }
        (None, _) => {
            return Err(usage(format!(
                "{}: it has {} machines: say which, as in {}; there are {}",
                folder.display(),
                labels.len(),
                shell::quote(&format!("{text}#{}", labels.first().unwrap_or(&"LABEL"))),
                listed(labels.iter().copied())
            )))
        }
    };
    let (finished, _) = session.finished().map_err(|e| usage(format!("{e:#}")))?;
    let side = Side { name: text.to_owned(), ..Side::of_machine(&session, &finished, &label) };
    if side.runs.is_empty() {
        return Err(usage(format!("{text}: no run was finished")));
    }
    if !is_saved(&session.dir) {
        return Err(usage(format!("{text} was removed while it was read")));
    }
    Ok(side)
}

/// A single run, by its folder.
fn of_run(text: &str, dir: &Path) -> Result<Side> {
    let wrong = |e: anyhow::Error| usage(format!("{e:#}"));
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let folder = dir.parent().and_then(Path::parent).unwrap_or(&dir);
    let session = boots_in(folder)?;
    let record = read_run(&dir).map_err(wrong)?;
    // The one run that is asked for counts, whatever it was made for.
    let measured = RunRecord { warmup: false, ..record };
    let label = measured.label.clone();
    let side = Side::of_machine(&session, &[(dir, measured)], &label);
    Ok(Side { name: text.to_owned(), ..side })
}
