//! How runs are repeated.

use clap::Args;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use vmeter_session::failure::usage;
use vmeter_session::RunOptions;

/// The options for repeated runs, the same in every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Run options")]
pub struct Runs {
    /// Warm-up runs of each machine, excluded from all statistics (default: 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup: Option<u32>,
    /// Measured runs of each machine (default: 5; findings: 10; memory and migrate: 3; bench: 10,
    /// or more to compare many machines; boot with --overhead: until decided, at most 40 pairs).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
    /// Seed of the random order of the runs (default: a new one, which is saved; 1 with --shard).
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Folder to save the runs in (default: a fresh one under $XDG_STATE_HOME/vmeter/runs).
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub save: Option<PathBuf>,
    /// Resume a saved session. Finished runs are kept.
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Resume a session even if it was copied from elsewhere or edited. This executes the commands
    /// saved in the session.
    #[arg(long, requires = "resume")]
    pub trust: bool,
    /// CPUs that the VMM may run on, e.g. 0,2-3 (default: all).
    #[arg(long, value_name = "CPUS")]
    pub pin: Option<String>,
    /// Shell command to run before each run, e.g. to drop caches.
    #[arg(long, value_name = "CMD")]
    pub prepare: Option<String>,
}

impl Runs {
    /// The options in the form that `vmeter_lab` takes.
    ///
    /// # Errors
    /// As [`drawn_seed`].
    pub fn options(self) -> anyhow::Result<RunOptions> {
        Ok(RunOptions {
            warmup: self.warmup,
            runs: self.runs,
            seed: self.seed,
            drawn: Some(drawn_seed()?),
            save: self.save,
            resume: self.resume,
            pin: self.pin,
            prepare: self.prepare,
            trust: self.trust,
            shard: None,
            gate: vmeter_model::run::AskedGate::default(),
            argv: vmeter_base::argv(),
        })
    }
}

/// The environment variable that sets the seed of every session without `--seed`. A test or a
/// script sets it once, to repeat the runs of many commands in the same order.
const SEED_VARIABLE: &str = "VMETER_SEED";

/// The seed of a session without `--seed`: the value of `VMETER_SEED` if that variable is set,
/// else a random one. The random seed has 32 bits, so that every JSON reader keeps it exactly.
///
/// # Errors
/// A usage error, if the variable is not a number.
pub fn drawn_seed() -> anyhow::Result<u64> {
    let Some(set) = std::env::var_os(SEED_VARIABLE) else {
        return Ok(RandomState::new().build_hasher().finish() >> 32);
    };
    let seed = set.to_str().and_then(|text| text.trim().parse().ok());
    seed.ok_or_else(|| {
        let set = set.to_string_lossy();
        usage(format!("{SEED_VARIABLE}={set}: expected an integer of 0 or more, as for --seed"))
    })
}
