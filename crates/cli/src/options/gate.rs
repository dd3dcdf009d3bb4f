//! `--fail-if-slower`, the same wherever it is asked.

use crate::Status;
use clap::Args;
use vmeter_lab::gate::{Gate, Inconclusive, Limit, Ruling};

/// What is too slow, and what comes of it.
#[derive(Debug, Clone, Copy, Args)]
pub struct FailIfSlower {
    /// Exit with status 1 if it is slower by more than PCT percent (the 95 % interval lies above
    /// it), 0 if it is not (the interval does not reach above it), else 4.
    #[arg(long, value_name = "PCT", value_parser = super::percent)]
    pub fail_if_slower: Option<f64>,
    /// What a gate that cannot decide comes to, instead of exit status 4.
    #[arg(long, value_name = "WHAT", requires = "fail_if_slower",
          value_parser = super::word::<Inconclusive>())]
    pub inconclusive: Option<Inconclusive>,
}

impl FailIfSlower {
    /// The limit, if one was given.
    pub fn limit(self) -> Option<Limit> {
        let inconclusive = self.inconclusive;
        self.fail_if_slower.map(|percent| Limit { percent, inconclusive })
    }
}

/// The status of a command that ended with `status`, and whose gates ruled so: the worst
/// counts. Says each on standard error.
pub fn ruled(status: Status, gates: &[Gate]) -> Status {
    for gate in gates {
        eprintln!("vmeter: gate: {}", vmeter_render::text::neutralise(&gate.text));
    }
    let worst = gates.iter().map(|gate| gate.ruling).max();
    match (status, worst) {
        (Status::Bad, _) | (_, Some(Ruling::Failed)) => Status::Bad,
        (_, Some(Ruling::Inconclusive)) => Status::Inconclusive,
        (status, _) => status,
    }
}
