//! What is asked of a session of migrations.

use crate::error::MigrateError;
use crate::parameters::{points, Knobs, Point};
use crate::side::Side;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vmeter_model::sweep::Settings;
use vmeter_model::MachineSpec;
use vmeter_session::{ResumeOverrides, RunOptions};

/// What is varied first, and always.
const DIRTY_RATE: &str = "dirty-rate";
/// Dirty rates unless any are given, MB/s.
const DIRTY_RATES: [&str; 3] = ["0", "50", "200"];
/// Measured migrations of each point, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 3;
/// A migration that is not done by then is given up, s.
const DEFAULT_TIMEOUT_S: u32 = 60;

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct MigrateOptions {
    /// The machine.
    pub spec: MachineSpec,
    /// What is set at every point, by the names of [`crate::parameters::NAMES`].
    pub fixed: Settings,
    /// What is varied: names and values, the slowest first.
    pub varied: Vec<(String, Vec<String>)>,
    /// A side to kill in the middle of every migration.
    pub kill: Option<Side>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What was asked, as `session.json` keeps it: enough to go on with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The machine.
    pub spec: MachineSpec,
    /// What is set at every point.
    pub fixed: Settings,
    /// What is varied: names and values, the slowest first.
    pub varied: Vec<(String, Vec<String>)>,
    /// A side to kill in the middle of every migration.
    pub kill: Option<Side>,
    /// Measured migrations of each point.
    pub runs: u32,
    /// Migrations of each point before them.
    pub warmup: u32,
}

impl Config {
    /// What the command line asks for, defaults filled in.
    pub fn of(options: &MigrateOptions) -> Self {
        let mut varied = options.varied.clone();
        if !varied.iter().any(|(name, _)| name == DIRTY_RATE) {
            let rates = DIRTY_RATES.map(str::to_owned).to_vec();
            varied.insert(0, (DIRTY_RATE.to_owned(), rates));
        }
        Config {
            spec: options.spec.clone(),
            fixed: options.fixed.clone(),
            varied,
            kill: options.kill,
            runs: options.runs.runs.unwrap_or(DEFAULT_RUNS),
            warmup: options.runs.warmups(),
        }
    }

    /// What is said beside `--resume`, and what was asked first.
    pub fn note_given(&self, options: &MigrateOptions, given: &mut ResumeOverrides) {
        given.option("--warmup", options.runs.warmup, self.warmup);
        let fewer = options.runs.runs.filter(|runs| *runs < self.runs);
        given.option("--runs", fewer, self.runs);
        given.option("--kill", options.kill.map(Some), self.kill);
        given.fields(&options.spec, &self.spec);
        for (name, value) in &options.fixed {
            let own = self.fixed.iter().find(|(other, _)| other == name);
            given.option(name, Some(Some(value)), own.map(|(_, value)| value));
        }
        for (name, values) in &options.varied {
            let own = self.varied.iter().find(|(other, _)| other == name);
            given.option(name, Some(Some(values)), own.map(|(_, values)| values));
        }
    }

    /// Every combination of what is varied.
    ///
    /// # Errors
    /// Class usage: what no migration can be made with.
    pub fn points(&self) -> Result<Vec<Point>> {
        let base = Knobs::new(self.spec.clone());
        points(&base, &self.fixed, &self.varied).map_err(MigrateError::classified)
    }

    /// When a migration is given up.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.spec.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S).into())
    }
}
