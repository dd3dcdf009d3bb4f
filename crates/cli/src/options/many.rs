//! Options of what is spread over many machines.

use clap::{Args, ValueEnum};
use vmeter_lab::slurm::SlurmOptions;
use vmeter_model::shard::{Shard, MAX_SHARDS};
use vmeter_session::failure::usage;

/// How a sweep or a range is spread over hosts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Many machines")]
pub struct Many {
    /// Run only part I of N, counted from 1. Run the other parts with the same command line on
    /// other hosts, then join them with `vmeter merge`.
    #[arg(long, value_name = "I/N", conflicts_with = "on")]
    pub shard: Option<Shard>,
    /// Run it as a job array of a scheduler, wait for it, and merge the parts.
    #[arg(long, value_name = "SCHEDULER")]
    pub on: Option<Scheduler>,
    /// Tasks of the job array, each on its own node.
    #[arg(long, value_name = "N", requires = "on",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    pub shards: Option<u32>,
    /// Partition to submit to (default: the cluster's).
    #[arg(long, value_name = "NAME", requires = "on")]
    pub partition: Option<String>,
    /// An option for sbatch, e.g. --sbatch=--time=30; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "on", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
    /// Merge hosts that differ in CPU model, kernel or VMM. vmeter estimates each host's speed and
    /// divides it out.
    #[arg(long)]
    pub mixed_hosts: bool,
}

/// Schedulers that a sweep can be given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// A Slurm cluster, by sbatch.
    Slurm,
}

impl Many {
    /// The cluster's part of the options.
    ///
    /// # Errors
    /// Class usage: no number of shards.
    pub fn cluster(self) -> anyhow::Result<SlurmOptions> {
        let shards = self.shards.ok_or_else(|| {
            usage("--on slurm: into how many tasks? --shards N, at most as many as there are nodes to use")
        })?;
        let Many { partition, sbatch, mixed_hosts, .. } = self;
        Ok(SlurmOptions { shards, partition, sbatch, mixed_hosts })
    }
}
