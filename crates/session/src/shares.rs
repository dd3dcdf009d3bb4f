//! Which host carried out which run.
//!
//! A session belongs to the host that it began on. Where another goes on with it, what was
//! finished before becomes the first one's share; so every run has a host, and a run's own
//! record needs no word of it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::SessionRecord;
use vmeter_model::shard::HostShare;

/// What is known of a host, as in [`SessionRecord::host`].
pub type Host = BTreeMap<String, Value>;

/// A field of a host, in words; empty if there is none.
pub fn field(host: &Host, name: &str) -> String {
    match host.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// What a host is called.
pub fn name(host: &Host) -> String {
    let name = field(host, "hostname");
    if name.is_empty() {
        "(no name)".to_owned()
    } else {
        name
    }
}

/// True for descriptions of one host. Sessions of before hosts had names are told apart by
/// the CPU alone.
pub fn is_same(a: &Host, b: &Host) -> bool {
    let unnamed = !a.contains_key("hostname") || !b.contains_key("hostname");
    let equal = |what: &str| field(a, what) == field(b, what);
    equal("cpu_model") && (unnamed || equal("hostname"))
}

/// The hosts of a session in the order of their shares, its own last, each with those of the
/// `finished` runs that it carried out. A host without any is left out.
pub fn hosts<P>(record: &SessionRecord<P>, finished: &BTreeSet<u32>) -> Vec<(Host, BTreeSet<u32>)> {
    let mut left = finished.clone();
    let mut found: Vec<(Host, BTreeSet<u32>)> = Vec::new();
    let mut add = |host: &Host, runs: BTreeSet<u32>| {
        if runs.is_empty() {
            return;
        }
        match found.iter_mut().find(|(known, _)| is_same(known, host)) {
            Some((_, own)) => own.extend(runs),
            None => found.push((host.clone(), runs)),
        }
    };
    for share in &record.shares {
        let own = share.runs.iter().filter(|run| left.remove(run)).copied().collect();
        add(&share.host, own);
    }
    add(&record.host, left);
    found
}

/// Makes `host` the one that goes on with the session.
pub(crate) fn take_over<P>(record: &mut SessionRecord<P>, host: Host, finished: &BTreeSet<u32>) {
    if is_same(&record.host, &host) {
        return;
    }
    let claimed: BTreeSet<u32> = record.shares.iter().flat_map(|s| &s.runs).copied().collect();
    let runs: Vec<u32> = finished.difference(&claimed).copied().collect();
    let before = std::mem::replace(&mut record.host, host);
    if !runs.is_empty() {
        record.shares.push(HostShare { host: before, runs });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        [("hostname".to_owned(), name.into()), ("cpu_model".to_owned(), "X".into())].into()
    }

    #[test]
    fn every_run_has_the_host_that_carried_it_out() {
        let mut record = SessionRecord::<vmeter_model::run::PlannedRun> {
            host: host("a"),
            ..SessionRecord::default()
        };
        take_over(&mut record, host("b"), &BTreeSet::new());
        assert_eq!((name(&record.host).as_str(), record.shares.len()), ("b", 0));
        take_over(&mut record, host("b"), &[1].into());
        take_over(&mut record, host("c"), &[1, 2].into());
        take_over(&mut record, host("b"), &[1, 2, 5].into());
        let found = hosts(&record, &[1, 2, 5, 7].into());
        let found: Vec<(String, Vec<u32>)> =
            found.into_iter().map(|(h, runs)| (name(&h), runs.into_iter().collect())).collect();
        assert_eq!(found, [("b".to_owned(), vec![1, 2, 7]), ("c".to_owned(), vec![5])]);
    }
}
