//! Options of what is spread over many machines.

use clap::{Args, ValueEnum};
use vmeter_lab::slurm::SlurmOptions;
use vmeter_model::shard::{Shard, MAX_SHARDS};
use vmeter_session::failure::usage;

/// How a sweep or a range is spread over hosts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Many machines")]
pub struct Many {
    /// Run only part I of N, counted from 1 (default: all parts). On other hosts, run the other
    /// parts with the same command line and another I, then join the parts with `vmeter merge`.
    #[arg(long, value_name = "I/N", conflicts_with = "on")]
    pub shard: Option<Shard>,
    /// Run the measurement as a job array of a scheduler, wait for the jobs, and merge their
    /// results (default: run on this host).
    #[arg(long, value_name = "SCHEDULER")]
    pub on: Option<Scheduler>,
    /// Number of tasks in the job array. Each task runs on its own node. Required with --on.
    #[arg(long, value_name = "N", requires = "on",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    pub shards: Option<u32>,
    /// Partition to submit to (default: the cluster's).
    #[arg(long, value_name = "NAME", requires = "on")]
    pub partition: Option<String>,
    /// Option to pass to sbatch, e.g. --sbatch=--time=30; may be repeated (default: none).
    #[arg(long, value_name = "OPTION", requires = "on", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
    /// Merge runs of hosts that differ in CPU model, kernel or VMM. For each host, vmeter estimates
    /// a factor, which says how slow the host is, and divides the host's times by this factor.
    #[arg(long)]
    pub mixed_hosts: bool,
}

/// Schedulers to which vmeter can submit a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// A Slurm cluster, by sbatch.
    Slurm,
}

impl Many {
    /// The options for the cluster.
    ///
    /// # Errors
    /// A usage error, if `--shards` is missing.
    pub fn cluster(self) -> anyhow::Result<SlurmOptions> {
        let shards = self.shards.ok_or_else(|| {
            usage(
                "--on slurm needs the number of tasks: add --shards N, at most the number of \
                the cluster's nodes",
            )
        })?;
        let Many { partition, sbatch, mixed_hosts, .. } = self;
        Ok(SlurmOptions { shards, partition, sbatch, mixed_hosts })
    }
}
