//! Slurm's commands: sbatch to submit, squeue to see what is left.
//!
//! sacct is not asked: many clusters keep no accounts. How a task ended is in its shard's
//! folder.

use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use vmeter_session::failure::host;

/// Longest message of a command that is passed on.
const MESSAGE: usize = 2000;

/// Where a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Queued {
    /// Slurm's short word: `PD` pending, `R` running, `CG` completing, …
    pub state: String,
    /// Why it waits, e.g. `Resources`.
    pub reason: String,
}

/// Submits tasks of the script, and gives the job's number.
///
/// # Errors
/// Class host: sbatch is missing or refuses, with what would mend it.
pub(super) fn submit(script: &Path, tasks: &[u32]) -> Result<String> {
    let array: Vec<String> = tasks.iter().map(u32::to_string).collect();
    let ran = Command::new("sbatch")
        .args(["--parsable", &format!("--array={}", array.join(","))])
        .arg(script)
        .output()
        .map_err(|e| missing("sbatch", &e))?;
    if !ran.status.success() {
        return Err(refused(&ran));
    }
    let text = String::from_utf8_lossy(&ran.stdout);
    job_number(&text)
        .ok_or_else(|| host(format!("sbatch printed {:?}: expected a job's number", short(&text))))
}

fn missing(command: &str, error: &std::io::Error) -> anyhow::Error {
    host(format!(
        "cannot run {command} ({error}). On a Debian host of a Slurm cluster, `apt-get install \
         slurm-client` installs it. Without Slurm, give all hosts the same command line, except \
         that each host has another --shard I/N; join the folders with vmeter merge"
    ))
}

fn refused(ran: &Output) -> anyhow::Error {
    let said = String::from_utf8_lossy(&ran.stderr);
    let said = short(&said);
    let lower = said.to_lowercase();
    let mend = if lower.contains("partition") {
        "`sinfo` lists the partitions; choose one with --partition NAME"
    } else if lower.contains("contact") || lower.contains("connect") || lower.contains("config") {
        "check that this host belongs to the cluster: `scontrol ping` should reach the \
            controller (SLURM_CONF names the cluster's slurm.conf)"
    } else if lower.contains("auth") || lower.contains("munge") || lower.contains("credential") {
        "munged must run here with the cluster's key; `munge -n | unmunge` should succeed"
    } else if lower.contains("account") || lower.contains("qos") {
        "name your account or QOS with --sbatch=--account=NAME or --sbatch=--qos=NAME"
    } else {
        "give sbatch more options with --sbatch=--OPTION=VALUE"
    };
    host(format!("sbatch refused the job ({}): {said}; {mend}", ran.status))
}

/// The number that `sbatch --parsable` prints: `123` or `123;cluster`.
pub(super) fn job_number(text: &str) -> Option<String> {
    let number = text.trim().split(';').next()?;
    let valid =
        !number.is_empty() && number.len() < 20 && number.chars().all(|c| c.is_ascii_digit());
    valid.then(|| number.to_owned())
}

/// The tasks of the jobs that Slurm still has, by array index; none if it can't be asked now.
pub(super) fn queue(jobs: &[String]) -> Option<BTreeMap<u32, Queued>> {
    let ran = Command::new("squeue")
        .args(["--noheader", "--array", "--format=%K|%t|%r", "--jobs", &jobs.join(",")])
        .output()
        .ok()?;
    if ran.status.success() {
        return Some(tasks(&String::from_utf8_lossy(&ran.stdout)));
    }
    // A job that ended a while ago is forgotten.
    let said = String::from_utf8_lossy(&ran.stderr);
    said.contains("Invalid job id").then(BTreeMap::new)
}

/// Reads `squeue --format=%K|%t|%r`.
pub(super) fn tasks(text: &str) -> BTreeMap<u32, Queued> {
    let line = |line: &str| {
        let mut fields = line.trim().splitn(3, '|');
        let task = fields.next()?.parse().ok()?;
        let state = fields.next()?.to_owned();
        let reason = fields.next().unwrap_or_default().to_owned();
        Some((task, Queued { state, reason }))
    };
    text.lines().filter_map(line).collect()
}

fn short(text: &str) -> String {
    let text: String = text.trim().chars().take(MESSAGE).collect();
    text.replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_slurm_prints_is_understood() {
        assert_eq!(job_number("123\n").as_deref(), Some("123"));
        assert_eq!(job_number("123;east\n").as_deref(), Some("123"));
        assert_eq!((job_number(""), job_number("Submitted batch job 3")), (None, None));
        let found = tasks("2|R|None\n4|PD|Resources\nN/A|R|None\n");
        let states: Vec<(u32, &str)> = found.iter().map(|(t, q)| (*t, q.state.as_str())).collect();
        assert_eq!(states, [(2, "R"), (4, "PD")]);
        assert_eq!(found[&4].reason, "Resources");
    }

    proptest! {
        #[test]
        fn nothing_it_prints_does_harm(text in "\\PC{0,200}") {
            let _ = (job_number(&text), tasks(&text), short(&text));
        }
    }
}
