//! The runs of a session, in their order.

use crate::config::{Config, FitRange, Options, SavedConfig};
use crate::error::IrqError;
use crate::strategy::IrqStrategy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vmeter_model::run::{Planned, SessionMachine};
use vmeter_stats::plan as in_turn;

/// Numbers of vectors at which the growth is sampled.
const SIZES: usize = 10;
/// Samples of each, at most.
const SAMPLES: usize = 8;

/// A run, as planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IrqPlanned {
    /// Index into the session's machines: a strategy, or a size of one.
    pub(crate) machine: usize,
    /// True if no figure of the strategies includes it.
    pub(crate) warmup: bool,
    /// Which of the session's strategies.
    pub(crate) strategy: usize,
    /// What it is for.
    #[serde(flatten)]
    pub(crate) purpose: Purpose,
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "purpose", rename_all = "lowercase")]
pub(crate) enum Purpose {
    /// Every vector is raised and looked for.
    Delivery,
    /// One of a round, in which every strategy has a turn.
    Round {
        /// From 0 on, warm-up rounds included.
        round: usize,
    },
    /// One of a round, on several VMs at once.
    Together {
        /// VMs.
        vms: usize,
    },
    /// Where the time inside the commits goes.
    Trace,
    /// A sample of how the cost grows.
    Growth {
        /// Vectors enabled in all.
        vectors: usize,
    },
    /// Samples at the host's limit of routes.
    Limit {
        /// Vectors enabled in all.
        vectors: usize,
    },
}

impl IrqPlanned {
    /// The error that there is no such strategy or run in the session.
    pub(crate) fn is_unknown(&self) -> IrqError {
        IrqError::Usage(format!(
            "session.json: the session did not request this run: strategy {}, purpose {:?}",
            self.strategy, self.purpose
        ))
    }
}

impl Planned for IrqPlanned {
    fn machine(&self) -> usize {
        self.machine
    }

    fn warmup(&self) -> bool {
        self.warmup
    }
}

/// Numbers of vectors, evenly spread up to `most`; none if they are too few for a fit.
fn sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=SIZES).map(|i| most * i / SIZES).filter(|n| *n > 0).collect();
    sizes.dedup();
    if sizes.len() < 5 {
        sizes.clear();
    }
    sizes
}

/// VFs of so many vectors that the host's routes are enough for, where these are more than
/// were asked for.
pub(crate) fn vfs_at_limit(options: &Options, free_routes: usize) -> Option<usize> {
    Some(free_routes.checked_div(options.vectors)?).filter(|vfs| *vfs > options.vfs)
}

/// What is compared, and the runs: a delivery of each strategy, the rounds, a trace of each
/// strategy, the samples of its growth. `provenance` is that of each machine.
pub(crate) fn plan(
    kept: &SavedConfig,
    seed: u64,
    provenance: &BTreeMap<String, String>,
) -> (Vec<SessionMachine>, Vec<IrqPlanned>) {
    let names = &kept.found.strategies;
    let machine = |label: String, parameters: Vec<(String, String)>| SessionMachine {
        label,
        provenance: provenance.clone(),
        parameters,
        ..SessionMachine::default()
    };
    let by_name = |name: &IrqStrategy| vec![("strategy".to_owned(), name.to_string())];
    let mut machines: Vec<SessionMachine> =
        names.iter().map(|name| machine(name.to_string(), by_name(name))).collect();
    let once = |purpose| {
        (0..names.len()).map(move |strategy| IrqPlanned {
            machine: strategy,
            warmup: true,
            strategy,
            purpose,
        })
    };
    let mut runs: Vec<IrqPlanned> = once(Purpose::Delivery).collect();
    let (rounds, warmup) = kept.asked.rounds();
    runs.extend(in_turn(names.len(), warmup, rounds, seed).into_iter().map(|slot| IrqPlanned {
        machine: slot.machine,
        warmup: slot.warmup,
        strategy: slot.machine,
        purpose: Purpose::Round { round: slot.block },
    }));
    let Config::Vm(options) = &kept.asked else { return (machines, runs) };
    if !options.no_trace {
        runs.extend(once(Purpose::Trace));
    }
    let mut vms = options.vms.clone();
    vms.sort_unstable();
    vms.dedup();
    for vms in vms {
        let first = machines.len();
        for name in names {
            let count = ("vms".to_owned(), vms.to_string());
            let parameters = by_name(name).into_iter().chain([count]).collect();
            machines.push(machine(format!("{name}, {vms} VMs at once"), parameters));
        }
        let slots = in_turn(names.len(), warmup, rounds, seed);
        runs.extend(slots.into_iter().map(|slot| IrqPlanned {
            machine: first + slot.machine,
            warmup: slot.warmup,
            strategy: slot.machine,
            purpose: Purpose::Together { vms },
        }));
    }
    if options.fit == FitRange::None {
        return (machines, runs);
    }
    let sizes = sizes(options.vfs.saturating_mul(options.vectors));
    let first = machines.len();
    for name in names {
        for vectors in &sizes {
            let size = ("vectors".to_owned(), vectors.to_string());
            let parameters = by_name(name).into_iter().chain([size]).collect();
            machines.push(machine(format!("{name} x {vectors}"), parameters));
        }
    }
    let samples = options.runs.min(SAMPLES);
    let slots = in_turn(names.len() * sizes.len(), 0, samples, seed);
    runs.extend(slots.into_iter().map(|slot| IrqPlanned {
        machine: first + slot.machine,
        warmup: false,
        strategy: slot.machine / sizes.len(),
        purpose: Purpose::Growth { vectors: sizes[slot.machine % sizes.len()] },
    }));
    let limit = vfs_at_limit(options, kept.found.free_routes);
    let Some(vfs) = limit.filter(|_| options.fit == FitRange::Limit && !sizes.is_empty()) else {
        return (machines, runs);
    };
    let vectors = vfs * options.vectors;
    for (strategy, name) in names.iter().enumerate() {
        let size = ("vectors".to_owned(), vectors.to_string());
        let parameters = by_name(name).into_iter().chain([size]).collect();
        runs.push(IrqPlanned {
            machine: machines.len(),
            warmup: false,
            strategy,
            purpose: Purpose::Limit { vectors },
        });
        machines.push(machine(format!("{name} x {vectors}"), parameters));
    }
    (machines, runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Found;
    use msi_routes::Strategy;
    use proptest::prelude::*;

    fn kept(vfs: usize, vectors: usize, fit: FitRange) -> SavedConfig {
        let strategies = vec![Strategy::PerVector, Strategy::PerVm];
        let names = strategies.iter().map(|s| (*s).into()).collect();
        let asked = Config::Vm(Options {
            vfs,
            vectors,
            vcpus: 2,
            busy_cpus: 0,
            running_vcpus: 0,
            strategies,
            runs: 3,
            warmup: 1,
            fit,
            no_trace: false,
            vms: vec![8, 2],
        });
        let found = Found { free_routes: 4072, strategies: names, ..Found::default() };
        SavedConfig { asked, found }
    }

    #[test]
    fn what_is_compared_has_a_label_of_its_own() {
        let (machines, runs) = plan(&kept(2, 20, FitRange::Limit), 1, &BTreeMap::new());
        let labels: std::collections::BTreeSet<&str> =
            machines.iter().map(|m| m.label.as_str()).collect();
        assert_eq!((machines.len(), labels.len()), (2 + 4 + 2 * SIZES + 2, machines.len()));
        assert!(labels.contains("per_vm, 8 VMs at once"), "{labels:?}");
        assert!(labels.contains("per_vm x 4060"), "{labels:?}");
        let count = |of: fn(&Purpose) -> bool| runs.iter().filter(|run| of(&run.purpose)).count();
        assert_eq!(count(|p| matches!(p, Purpose::Delivery)), 2);
        assert_eq!(count(|p| matches!(p, Purpose::Round { .. })), 2 * 4);
        assert_eq!(count(|p| matches!(p, Purpose::Together { vms: 8 })), 2 * 4);
        assert_eq!(count(|p| matches!(p, Purpose::Trace)), 2);
        assert_eq!(count(|p| matches!(p, Purpose::Growth { .. })), 2 * SIZES * 3);
        assert_eq!(count(|p| matches!(p, Purpose::Limit { .. })), 2);
        for run in &runs {
            let name = &kept(2, 20, FitRange::Limit).found.strategies[run.strategy];
            assert_eq!(machines[run.machine].parameters[0].1, name.word());
        }
    }

    #[test]
    fn what_was_asked_is_read_back() {
        let kept = kept(2, 20, FitRange::Vfs);
        let value = serde_json::to_value(&kept).unwrap();
        assert_eq!(value["strategy"], serde_json::json!(["per_vector", "per_vm"]));
        assert_eq!((&value["on"], &value["fit"]), (&"vm".into(), &"vfs".into()));
        assert_eq!(serde_json::from_value::<SavedConfig>(value).unwrap(), kept);
        let (_, runs) = plan(&kept, 1, &BTreeMap::new());
        let text = serde_json::to_string(&runs).unwrap();
        assert_eq!(serde_json::from_str::<Vec<IrqPlanned>>(&text).unwrap(), runs);
    }

    #[test]
    fn sizes_end_at_what_was_asked_for() {
        assert_eq!(sizes(520).len(), SIZES);
        assert_eq!(sizes(520).last(), Some(&520));
        assert!(sizes(3).is_empty());
    }

    proptest! {
        #[test]
        fn any_sizes_rise(most in 5usize..10_000) {
            let sizes = sizes(most);
            prop_assert!(sizes.windows(2).all(|w| w[0] < w[1]));
            prop_assert_eq!(sizes.last(), Some(&most));
        }
    }
}
