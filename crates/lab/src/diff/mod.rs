//! `vmeter diff A B`: what changed between two saved runs, and is it real?

pub mod lines;
mod normalised;
mod rows;
pub mod saved;
mod side;

pub use side::Side;
use vmeter_model::DiffVerdict;

pub mod report;

use crate::verdict::slow_runs;
use std::collections::BTreeMap;
use vmeter_model::result::Envelope;
use vmeter_model::sweep::{DiffKind, DiffResult, DiffRow, DiffSetting, DiffSide};
use vmeter_stats::{estimate, median, ratio_of_means, MeanRatio};

/// An activity seen on both sides says something of the host if so many of them agree.
const COMMON_ACTIVITIES: usize = 8;
/// … in this share of them …
const COMMON_SHARE: f64 = 0.8;
/// … and by this much.
const COMMON_CHANGE: f64 = 0.03;

/// Compares two sides.
pub fn compare_sides(a: &Side, b: &Side, seed: u64) -> DiffResult {
    let exact = a.is_exact() && b.is_exact();
    let rows::Rows { rows, lines, tests } = rows::rows(a, b, exact, seed);
    let (before, after) = (a.totals(), b.totals());
    DiffResult {
        envelope: Envelope { command: "diff".into(), ..b.envelope.clone() },
        verdict: if a.ends.is_unknown() || b.ends.is_unknown() {
            DiffVerdict::EndsNotKnown
        } else {
            verdict(&rows, &lines, exact, a.runs.len() + b.runs.len() > 2)
        },
        ratio: ratio_of_means(&before, &after),
        exact,
        settings: settings(a, b),
        tests,
        warnings: warnings(a, b, &rows, exact),
        hints: hints(a, b, exact),
        rows,
        lines,
        a: described(a),
        b: described(b),
    }
}

fn described(side: &Side) -> DiffSide {
    let samples_s = side.totals();
    DiffSide {
        name: side.name.clone(),
        label: side.machine.label.clone(),
        runs: side.runs.iter().map(|f| f.run.index).collect(),
        total: (!samples_s.is_empty()).then(|| estimate(&samples_s)),
        samples_s,
        reached: side.ends.failed().is_none(),
        icount: side.is_exact(),
        started_at: side.envelope.started_at.clone(),
    }
}

fn verdict(rows: &[DiffRow], lines: &[DiffRow], exact: bool, known: bool) -> DiffVerdict {
    let total = rows.iter().find(|r| r.kind == DiffKind::Total && r.significant);
    match total {
        Some(total) if total.difference > 0.0 => DiffVerdict::Slower,
        Some(_) => DiffVerdict::Faster,
        None if rows.iter().chain(lines).any(|r| r.significant) => DiffVerdict::Different,
        None if !exact && !known => DiffVerdict::NotKnown,
        None => DiffVerdict::NoDifference,
    }
}

/// What differs in the machines and their hosts, as they were recorded.
fn settings(a: &Side, b: &Side) -> Vec<DiffSetting> {
    let of = |side: &Side| -> BTreeMap<String, String> {
        let machine = &side.machine;
        let mut all = BTreeMap::new();
        all.extend(machine.chosen.iter().map(|c| (c.what.clone(), c.value.clone())));
        all.extend(machine.provenance.clone());
        all.extend(machine.parameters.iter().cloned());
        let host = side.envelope.host.iter();
        all.extend(host.map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (format!("host {name}"), text)
        }));
        all
    };
    let (before, after) = (of(a), of(b));
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let value = |all: &BTreeMap<String, String>, name| all.get(name).cloned().unwrap_or_default();
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| DiffSetting {
            name: name.clone(),
            a: value(&before, name),
            b: value(&after, name),
        })
        .collect()
}

fn warnings(a: &Side, b: &Side, rows: &[DiffRow], exact: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    for side in [a, b] {
        if side.failed > 0 {
            warnings.push(format!("{}: {} failed runs are left out", side.name, side.failed));
        } else if side.runs.iter().any(|f| !f.is_done()) {
            warnings.push(format!(
                "{}: no run reached its end, so vmeter compares runs that \
                failed",
                side.name
            ));
        }
    }
    if a.is_exact() != b.is_exact() {
        warnings.push(
            "one side is in virtual time and the other is not: their times cannot be compared"
                .into(),
        );
    }
    for (side, other) in [(a, b), (b, a)] {
        let has = |side: &Side, name: &String| side.runs.iter().any(|f| f.marks.contains_key(name));
        let names: std::collections::BTreeSet<&String> =
            side.runs.iter().flat_map(|f| f.marks.keys()).collect();
        for name in names.into_iter().filter(|name| !has(other, name)) {
            warnings.push(format!("mark {name}: seen in {} only", side.name));
        }
    }
    let model = |side: &Side| side.envelope.host.get("cpu_model").cloned();
    if model(a) != model(b) {
        warnings.push(
            "measured on hosts of different CPU models: compare counts rather than times".into(),
        );
    }
    let differs = rows.iter().any(|r| r.kind == DiffKind::Total && r.significant);
    if a.folder != b.folder && differs && !exact {
        warnings.push(
            "the two sessions ran at different times, and the host may have changed in between. \
                To rule out the host as the cause, run both machines in turn (`vmeter boot \
                --baseline`, `vmeter bench --vs`)"
                .into(),
        );
    }
    let (before, after) = (a.totals(), b.totals());
    warnings.extend(
        MeanRatio::of_sides(&before, &after)
            .filter(|_| !exact)
            .and_then(|found| slow_runs([&a.name, &b.name], found.slow, found.slow_p_value())),
    );
    warnings.extend(common_factor(a, b, rows).map(|(middle, many)| {
        format!(
            "nearly all activities take {middle:.2} times as long on the second side as on the \
             first (the median of {many} activities), so the host probably changed, and not the \
             machine; `vmeter bench --vs` interleaves the runs, and --accel icount has no noise"
        )
    }));
    warnings
}

/// A slower host slows everything: by how many times, and how many activities say so. It does
/// nothing to virtual time.
fn common_factor(a: &Side, b: &Side, rows: &[DiffRow]) -> Option<(f64, usize)> {
    if a.is_exact() && b.is_exact() {
        return None;
    }
    rows.iter().find(|r| r.kind == DiffKind::Total && r.significant)?;
    let mean = |side: &Side, key| {
        let times = side.runs.iter().filter_map(|f| f.activities.get(key)).map(|(s, _)| *s);
        vmeter_stats::mean(&times.collect::<Vec<_>>())
    };
    let total: f64 = a.totals().iter().sum::<f64>() / a.runs.len().max(1) as f64;
    let keys = a.runs.first()?.activities.keys();
    let ratios: Vec<f64> = keys
        .map(|key| (mean(a, key), mean(b, key)))
        .filter(|(x, y)| *x > total * 1e-3 && *y > 0.0)
        .map(|(x, y)| y / x)
        .collect();
    let middle = median(&ratios);
    let agree = ratios.iter().filter(|r| (**r > 1.0) == (middle > 1.0)).count() as f64;
    let common = ratios.len() >= COMMON_ACTIVITIES
        && (middle - 1.0).abs() >= COMMON_CHANGE
        && agree >= COMMON_SHARE * ratios.len() as f64;
    common.then_some((middle, ratios.len()))
}

fn hints(a: &Side, b: &Side, exact: bool) -> Vec<String> {
    let fewest = a.runs.len().min(b.runs.len());
    if exact || fewest >= 5 {
        return Vec::new();
    }
    vec![format!(
        "use more --runs for both machines: {fewest} runs can detect large differences \
        only"
    )]
}

/// Names in a sentence, the first of many.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const NAMED: usize = 8;
    let names: Vec<&str> = names.collect();
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join("; ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
