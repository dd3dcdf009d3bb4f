//! What all that `run.json` may hold has in common.

use serde::de::DeserializeOwned;
use serde::Serialize;
use vmeter_base::Ns;
use vmeter_model::run::{DataRun, Outcome, RunHead, RunRecord};

/// What `run.json` holds, whatever the kind of experiment.
pub trait RunFile: Serialize + DeserializeOwned {
    /// The format, [`SCHEMA`].
    fn schema(&self) -> &str;
    /// Number of the run in its session.
    fn index(&self) -> u32;
    /// The machine that it is of.
    fn label(&self) -> &str;
    /// How it ended.
    fn outcome(&self) -> &Outcome;
    /// Names of the files beside it that belong to the run.
    fn files(&self) -> Vec<&str> {
        Vec::new()
    }
    /// What it says that cannot be, if anything.
    fn impossible(&self) -> Option<String> {
        None
    }
}

/// No host has been up for longer: a hundred years, ns. Differences of such stamps fit.
const MAX_STAMP_NS: Ns = 100 * MAX_TOTAL_NS;

/// No run takes longer: a year, ns.
const MAX_TOTAL_NS: Ns = 366 * 24 * 3600 * 1_000_000_000;

/// Says so if no run can take that long, or be done in that time.
pub fn impossible_total(total_ns: Ns, outcome: &Outcome) -> Option<String> {
    let least = i64::from(*outcome == Outcome::Done);
    let possible = (least..=MAX_TOTAL_NS).contains(&total_ns);
    (!possible).then(|| format!("its duration of {total_ns} ns is impossible"))
}

impl RunFile for RunRecord {
    fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn files(&self) -> Vec<&str> {
        self.sources.iter().flat_map(|source| &source.files).map(String::as_str).collect()
    }

    fn impossible(&self) -> Option<String> {
        let stamps = self.clocks.iter().map(|clock| clock.monotonic_ns).chain([self.exec_ns]);
        let odd = stamps.into_iter().find(|stamp| !(0..=MAX_STAMP_NS).contains(stamp));
        let odd = odd.map(|stamp| {
            format!(
                "its start at {stamp} ns of the host's clock is \
            impossible"
            )
        });
        impossible_total(self.total_ns, &self.outcome).or(odd)
    }
}

impl RunFile for RunHead {
    fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

impl<T: Serialize + DeserializeOwned> RunFile for DataRun<T> {
    fn schema(&self) -> &str {
        &self.head.schema
    }

    fn index(&self) -> u32 {
        self.head.index
    }

    fn label(&self) -> &str {
        &self.head.label
    }

    fn outcome(&self) -> &Outcome {
        &self.head.outcome
    }
}
