//! The two sides of `vmeter diff`, out of saved sessions of whatever kind boots.

use super::side::Side;
use super::{common_factor, compare_sides, listed};
use crate::compare::comparison;
use crate::ends::Ends;
use crate::gate::{Gate, Limit};
use crate::kinds;
use crate::session_variance;
use anyhow::Result;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::run::RunRecord;
use vmeter_model::sweep::DiffResult;
use vmeter_model::DiffVerdict;
use vmeter_session::failure::usage;
use vmeter_session::{is_saved, read_run, AnySession, Session};
use vmeter_stats::decide::POWER;
use vmeter_stats::dist::normal_quantile;
use vmeter_stats::sample::sum_squares;
use vmeter_stats::Rule;

/// Compares two saved machines: each a session's folder, `FOLDER#LABEL` for one machine of
/// several, or the folder of a single run.
///
/// # Errors
/// Class usage, for what is no saved session or run, or holds no boots.
pub fn diff(a: &OsStr, b: &OsStr, argv: Vec<String>) -> Result<DiffResult> {
    gated(a, b, argv, None).map(|(result, _)| result)
}

/// As [`diff`], with what a gate says of it.
///
/// # Errors
/// As [`diff`].
pub fn gated(
    a: &OsStr,
    b: &OsStr,
    argv: Vec<String>,
    limit: Option<Limit>,
) -> Result<(DiffResult, Option<Gate>)> {
    let (a, b) = (open(a)?, open(b)?);
    if let Some(why) = Ends::unlike((&a.name, &a.ends), (&b.name, &b.ends)) {
        return Err(usage(format!(
            "vmeter does not compare these machines, because their runs did not end in the same \
            way: {why}"
        )));
    }
    let mut result = compare_sides(&a, &b, 1);
    result.envelope = Envelope { command: "diff".into(), argv, ..result.envelope };
    result.envelope.started_at = vmeter_session::host::now();
    let gate = limit.map(|limit| ruled(&a, &b, &result, &limit)).transpose()?;
    Ok((result, gate))
}

/// Why `--detect` is refused for saved runs, with the number that would have been needed.
///
/// # Errors
/// As [`diff`].
pub fn as_many_as_there_are(a: &OsStr, b: &OsStr, pct: f64) -> Result<anyhow::Error> {
    let baseline = a.as_bytes().split(|byte| *byte == b'#').next().unwrap_or_default();
    let baseline = shell::path(Path::new(OsStr::from_bytes(baseline)));
    let (a, b) = (open(a)?, open(b)?);
    let logs = [&a, &b].map(|side| side.totals().iter().map(|t| t.ln()).collect::<Vec<f64>>());
    let squares: f64 = logs.iter().map(|logs| sum_squares(logs)).sum();
    let freedom = logs.iter().map(|logs| logs.len().saturating_sub(1)).sum::<usize>();
    let run_counts = format!("the two machines have {} and {} runs", logs[0].len(), logs[1].len());
    let needed = if freedom == 0 || !squares.is_finite() {
        format!("The saved runs are too few to show how much run times scatter: {run_counts}")
    } else {
        let sd = (squares / freedom as f64).sqrt();
        let z = normal_quantile(0.975) + normal_quantile(POWER);
        let each = (2.0 * (z * sd / (pct / 100.0).ln_1p()).powi(2)).ceil().max(2.0) + 1.0;
        format!(
            "The saved runs scatter by {:.1} %. With 80 % power, {each:.0} runs of each machine \
                would have shown the difference that --detect names; {run_counts}. But sessions \
                can vary more than the runs within a session",
            100.0 * sd.exp_m1()
        )
    };
    Ok(usage(format!(
        "--detect {pct}: vmeter cannot add runs to saved sessions. {needed}. To boot both \
            machines in turn until the result is clear, run vmeter boot --baseline {baseline} \
            --detect {pct}"
    )))
}

/// Whether b is slower than a by more than the limit. Machines of one session are compared
/// block by block; what two sessions differ by is more than their runs' noise.
fn ruled(a: &Side, b: &Side, result: &DiffResult, limit: &Limit) -> Result<Gate> {
    // Runs that never got to their end say nothing of how fast it is.
    if !result.a.reached || !result.b.reached {
        return Ok(limit.nothing("a run did not reach its end"));
    }
    if result.verdict == DiffVerdict::EndsNotKnown {
        return Ok(limit.nothing("vmeter does not know how the guests ended"));
    }
    let exact = a.is_exact() && b.is_exact();
    if a.folder == b.folder && !exact {
        let (pairs, _) = crate::blocks::pairs(&a.by_block, &b.by_block);
        let rule = Rule::default();
        let found = rule.decide(&pairs);
        let gate = found.map_or_else(
            || limit.nothing("no block has runs of both machines"),
            |found| limit.of_comparison(&comparison((&a.name, &b.name), found, found.ratio, &rule)),
        );
        return Ok(gate);
    }
    let (before, now) = (a.totals(), b.totals());
    if let Some(differ) =
        session_variance::provenance(&a.envelope, &a.machine, &b.envelope, &b.machine)
            .filter(|_| !exact)
    {
        return Ok(limit.unknowable(&format!("{} was measured {differ}", a.name)));
    }
    if let Some((middle, _)) = common_factor(a, b, &result.rows) {
        return Ok(limit.unknowable(&format!(
            "nearly every part of the boot takes {middle:.2} times as long in the second session \
             as in the first, so the host's speed or load may have changed; vmeter boot \
             --baseline boots both machines in turn"
        )));
    }
    let between = session_variance::between(&Session::open(&a.folder)?, &b.folder);
    let sides = session_variance::Sides { a: &before, b: &now, exact };
    Ok(match session_variance::compare(&sides, between) {
        Ok(found) => {
            let instead = "vmeter boot --baseline can decide, because it boots both machines \
                in turn";
            limit.rule_sessions(&b.name, &found, instead)
        }
        Err(why) => limit.unknowable(&why),
    })
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
fn open(named: &OsStr) -> Result<Side> {
    let path = Path::new(named);
    let text = &*path.to_string_lossy();
    if path.join("run.json").is_file() {
        return of_run(text, path);
    }
    let bytes = named.as_bytes();
    let mark = bytes.iter().rposition(|byte| *byte == b'#').filter(|_| !path.exists());
    let (folder, label) = match mark.map(|at| (&bytes[..at], std::str::from_utf8(&bytes[at + 1..])))
    {
        Some((folder, Ok(label))) => (Path::new(OsStr::from_bytes(folder)), Some(label)),
        _ => (path, None),
    };
    let session = boots_in(folder)?;
    let labels: Vec<&str> = session.record.machines.iter().map(|m| m.label.as_str()).collect();
    let label = match (label, labels.as_slice()) {
        (Some(label), _) if labels.contains(&label) => label.to_owned(),
        (None, [only]) => (*only).to_owned(),
        // A baseline that took turns with it is not what a boot was asked about.
        (None, [own, ..]) if session.record.command == crate::boot::KIND => (*own).to_owned(),
        (Some(label), _) => {
            return Err(usage(format!(
                "{}: there is no {label:?} in it, only {}",
                folder.display(),
                listed(labels.into_iter())
            )))
        }
        (None, _) => {
            return Err(usage(format!(
                "{} has {} machines: name one of them, as in {}; its machines are {}",
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
