//! A range cut into shards.
//!
//! Every commit is measured on as many hosts as its runs allow, so that a host's factor can be
//! told from a commit's. All hosts plan all commits; whether one builds is found by the shard
//! that gets to it.

use super::config::{RangeOptions, KIND};
use crate::blocks;
use crate::sweep::points::Plan;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use vmeter_model::range::{Commit, RangeRecord};
use vmeter_model::run::{SessionMachine, SessionRecord};
use vmeter_model::shard::ShardPlan;
use vmeter_model::sweep::Settings;
use vmeter_model::MachineSpec;
use vmeter_session::failure::usage;
use vmeter_session::identity;

/// What a commit's machine says of it.
pub(super) fn parameters(commit: &Commit) -> Settings {
    vec![("commit".to_owned(), commit.hash.clone())]
}

/// The session of which every shard carries out a part, and the parts.
///
/// # Errors
/// Class usage: a search, which cannot be cut; more shards than there is work for.
pub(crate) fn cut(
    range: &RangeRecord,
    options: &RangeOptions,
    shards: u32,
) -> Result<(SessionRecord, Vec<ShardPlan>)> {
    if range.bisect {
        return Err(usage(
            "--bisect chooses each run from the results of the runs before, so it cannot be split \
                into shards: leave --bisect out to measure every commit, or search on one host",
        ));
    }
    let runs = range.runs_each() as usize;
    let all: Vec<(&Commit, u32)> =
        range.commits.iter().flat_map(|c| (1..=range.builds.max(1)).map(move |b| (c, b))).collect();
    let plan = Plan { of: all.len(), warmups: range.warmup as usize, runs };
    let (slots, parts) = plan.cut(options.runs.order(), shards, "commits")?;
    let mut record = vmeter_session::record(KIND, &options.runs);
    record.machines = all
        .into_iter()
        .map(|(commit, build)| SessionMachine {
            label: RangeRecord::label(commit, build),
            spec: range.machine.clone(),
            parameters: parameters(commit),
            ..SessionMachine::default()
        })
        .collect();
    record.plan = blocks::planned(slots, |_| range.watch);
    Ok((record, parts))
}

/// The machines of the shard's unfinished runs, each shard's beginning elsewhere.
pub(super) fn order(record: &SessionRecord, finished: &BTreeSet<u32>) -> Vec<usize> {
    let Some(own) = &record.shard else { return Vec::new() };
    let left = own.runs.iter().filter(|run| !finished.contains(run));
    let machines = left.filter_map(|run| Some(record.plan.get(*run as usize)?.machine));
    let mut all: Vec<usize> = machines.collect::<BTreeSet<_>>().into_iter().collect();
    let begin = all.len() * (own.shard.index as usize - 1) / own.shard.of as usize;
    let begin = begin.min(all.len());
    all.rotate_left(begin);
    all
}

/// The session of a range as it begins: one shard of it, or the whole of it, whose machines and
/// runs are planned as the search goes on.
///
/// # Errors
/// As [`cut`].
pub(super) fn session(range: &RangeRecord, options: &RangeOptions) -> Result<SessionRecord> {
    let programs = programs(range);
    let planned = match options.runs.shard {
        None => vmeter_session::record(KIND, &options.runs),
        Some(shard) => {
            let (record, mut parts) = cut(range, options, shard.of)?;
            let own = parts.swap_remove(shard.index as usize - 1);
            SessionRecord { shard: Some(own), ..record }
        }
    };
    Ok(SessionRecord { programs, ..planned })
}

/// The files that the commands of a range name, beside those of its commits.
fn programs(record: &RangeRecord) -> BTreeMap<String, String> {
    let MachineSpec { vmm, machine, firmware, kernel, initrd, command, .. } = &record.machine;
    let text = |path: &PathBuf| path.display().to_string();
    let named = [kernel, initrd].into_iter().flatten().map(text);
    let named = named.chain([vmm, machine, firmware].into_iter().flatten().cloned());
    let build = record.build.iter().flat_map(|line| ["sh".to_owned(), "-c".into(), line.clone()]);
    let mut found = identity::of_command(command);
    found.extend(named.flat_map(|word| identity::of_command(&[word])));
    found.extend(identity::of_command(&build.collect::<Vec<_>>()));
    found
}
