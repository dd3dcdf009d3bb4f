//! What shards must have in common: the plan always, the kind of host unless told otherwise.

use super::Part;
use crate::failure::usage;
use crate::shares::{self, Host};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::SessionRecord;

/// Commands whose sessions are cut into shards.
const CUT: [&str; 2] = ["sweep", "range"];
/// What hosts of one kind have in common.
const HOST_FIELDS: [(&str, &str); 2] = [("cpu_model", "CPU models"), ("kernel", "host kernels")];

/// Refuses parts of different plans.
pub(super) fn check_plans(parts: &[Part]) -> Result<()> {
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let a = &first.session;
    if !CUT.contains(&a.record.command.as_str()) {
        return Err(usage(format!(
            "{} is a session of vmeter {}: only sweeps and ranges are cut into shards",
            a.dir.display(),
            a.record.command
        )));
    }
    for part in parts {
        check_runs(part)?;
    }
    for other in others {
        let b = &other.session;
        if let Some(what) = other_plan(&a.record, &b.record) {
            return Err(usage(format!(
                "{} and {} are no shards of one session: {what}; give every host the same command line with its own --shard I/N",
                a.dir.display(),
                b.dir.display()
            )));
        }
    }
    Ok(())
}

/// Refuses runs that the part's own plan does not have.
fn check_runs(part: &Part) -> Result<()> {
    let record = &part.session.record;
    for (dir, run) in &part.runs {
        let planned = record.plan.get(run.index as usize);
        let machine = planned.and_then(|p| record.machines.get(p.machine));
        if machine.is_none_or(|m| m.label != run.label) {
            let wanted = machine.map_or("nothing", |m| m.label.as_str());
            return Err(usage(format!(
                "{} is a run of {:?}, and session.json plans {wanted:?} under that number: the folder was put together by hand",
                dir.display(),
                run.label
            )));
        }
    }
    Ok(())
}

fn other_plan(a: &SessionRecord, b: &SessionRecord) -> Option<&'static str> {
    let labels =
        |r: &SessionRecord| -> Vec<String> { r.machines.iter().map(|m| m.label.clone()).collect() };
    let specs = || a.machines.iter().map(|m| &m.spec).eq(b.machines.iter().map(|m| &m.spec));
    let of = |r: &SessionRecord| r.shard.as_ref().map(|own| own.shard.of);
    let cut = of(a).zip(of(b)).is_some_and(|(a, b)| a != b);
    match () {
        () if a.command != b.command => Some("one is of another command"),
        () if labels(a) != labels(b) => Some("their points differ"),
        () if !specs() => Some("their machines differ"),
        () if cut => Some("they were cut into different numbers of shards"),
        () if a.seed != b.seed => Some("their --seed differs"),
        () if a.plan != b.plan => Some("their plans differ (--runs, --warmup, --watch or --shard)"),
        () => None,
    }
}

/// In what the parts' hosts and machines differ, in words: what forbids pooling, and what is
/// only to be told.
pub(super) fn differences(parts: &[Part]) -> (Vec<String>, Vec<String>) {
    let mut found = Vec::new();
    for (field, words) in HOST_FIELDS {
        let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for part in parts {
            for host in hosts(part) {
                let of = values.entry(shares::field(&host, field)).or_default();
                of.insert(shares::name(&host));
            }
        }
        found.extend(spelled(words, &values));
    }
    let is_range = parts.first().is_some_and(|part| part.session.record.command == "range");
    // Two builds of one commit differ by their time stamps at least.
    let (told, more): (Vec<_>, Vec<_>) =
        machines(parts).into_iter().partition(|(what, _)| is_range && *what != "accel");
    found.extend(more.into_iter().map(|(_, text)| text));
    (found, told.into_iter().map(|(_, text)| text).collect())
}

/// In what the machines of one label differ between parts, each thing named once: a sweep may
/// itself vary the kernel, say, so that different points may differ.
fn machines(parts: &[Part]) -> Vec<(&str, String)> {
    let mut values: BTreeMap<(&str, &str), BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.runs.is_empty()) {
        let dir = part.session.dir.display().to_string();
        for machine in &part.session.record.machines {
            let accel = machine.chosen.iter().filter(|(what, ..)| what == "accel");
            let accel = accel.map(|(what, value, _)| (what.as_str(), value.clone()));
            let files = machine.provenance.iter().map(|(what, v)| (what.as_str(), version(v)));
            for (what, value) in accel.chain(files) {
                let of = values.entry((what, &machine.label)).or_default();
                of.entry(value).or_default().insert(dir.clone());
            }
        }
    }
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    for ((what, label), values) in &values {
        if let Some(text) = spelled(&format!("{what} of {label}"), values) {
            found.entry(what).or_insert(text);
        }
    }
    found.into_iter().collect()
}

fn hosts(part: &Part) -> Vec<Host> {
    let own: BTreeSet<u32> = part.runs.iter().map(|(_, run)| run.index).collect();
    shares::hosts(&part.session.record, &own).into_iter().map(|(host, _)| host).collect()
}

/// A file is what its digest says and a program what its version says, wherever they lie:
/// `/boot/vmlinuz sha256:…`, `QEMU emulator version 7.2.22 (/usr/bin/qemu-system-x86_64)`.
fn version(value: &str) -> String {
    match (value.split_once(" sha256:"), value.rsplit_once(" (/")) {
        (Some((_, digest)), _) => format!("sha256:{digest}"),
        (None, Some((version, _))) => version.to_owned(),
        (None, None) => value.to_owned(),
    }
}

fn spelled(what: &str, values: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    if values.len() < 2 {
        return None;
    }
    let each = values.iter().map(|(value, of)| {
        let of: Vec<&str> = of.iter().map(String::as_str).collect();
        format!("{value:?} ({})", crate::diff::listed(of.into_iter()))
    });
    Some(format!("different {what}: {}", each.collect::<Vec<_>>().join(", ")))
}
