//! What shards must have in common: the plan always, the kind of host unless --mixed-hosts.

use super::Part;
use vmeter_session::failure::usage;
use vmeter_session::identity::version;

use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::{AnyPlanned, Planned, SessionRecord};
use vmeter_session::shares::{self, Host};

type Record = SessionRecord<AnyPlanned>;

/// What hosts of one kind have in common.
const HOST_FIELDS: [(&str, &str); 2] = [("cpu_model", "CPU models"), ("kernel", "host kernels")];

/// Refuses parts of different plans.
pub(super) fn check_plans(parts: &[Part]) -> Result<()> {
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let a = &first.session;
    for part in parts {
        check_runs(part)?;
    }
    for other in others {
        let b = &other.session;
        if let Some(what) = other_plan(&a.record, &b.record) {
            return Err(usage(format!(
                "{} and {} are no shards of one session: {what}; \
                 give all hosts the same command line, except that each host has another \
                 --shard I/N",
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
        let machine = planned.and_then(|p| record.machines.get(p.machine()));
        if machine.is_none_or(|m| m.label != run.label) {
            let wanted = machine.map_or("nothing", |m| m.label.as_str());
            return Err(usage(format!(
                "{} is a run of {:?}, but session.json plans {wanted:?} for that run number: \
                    the folder was edited by hand",
                dir.display(),
                run.label
            )));
        }
    }
    Ok(())
}

fn other_plan(a: &Record, b: &Record) -> Option<&'static str> {
    let labels =
        |r: &Record| -> Vec<String> { r.machines.iter().map(|m| m.label.clone()).collect() };
    let specs = || a.machines.iter().map(|m| &m.spec).eq(b.machines.iter().map(|m| &m.spec));
    let of = |r: &Record| r.shard.as_ref().map(|own| own.shard.of);
    let cut = of(a).zip(of(b)).is_some_and(|(a, b)| a != b);
    let checks = [
        (a.command != b.command, "they are sessions of different vmeter commands"),
        (labels(a) != labels(b), "their points differ"),
        (!specs(), "their machines differ"),
        (cut, "the N of their --shard I/N differs"),
        (a.seed != b.seed, "their --seed differs"),
        (a.plan != b.plan, "their plans differ (--runs, --warmup, --watch or --shard)"),
        (a.asked != b.asked, "their other options differ"),
    ];
    checks.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
}

/// In what the parts' hosts and machines differ, in words: differences that forbid pooling,
/// and those that are reported but do not block a merge. `built`: each host built its own
/// files, and two builds of one commit differ by their time stamps at least.
pub(super) fn differences(parts: &[Part], built: bool) -> (Vec<String>, Vec<String>) {
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
    let (reported, more): (Vec<_>, Vec<_>) =
        machines(parts).into_iter().partition(|(what, _)| built && *what != "accel");
    found.extend(more.into_iter().map(|(_, text)| text));
    (found, reported.into_iter().map(|(_, text)| text).collect())
}

/// In what the machines of one label differ between parts, each thing named once: a sweep may
/// itself vary the kernel, say, so that different points may differ.
fn machines(parts: &[Part]) -> Vec<(&str, String)> {
    let mut values: BTreeMap<(&str, &str), BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.runs.is_empty()) {
        let dir = part.session.dir.display().to_string();
        for machine in &part.session.record.machines {
            let accel = machine.chosen.iter().filter(|chosen| chosen.what == "accel");
            let accel = accel.map(|chosen| (chosen.what.as_str(), chosen.value.clone()));
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
