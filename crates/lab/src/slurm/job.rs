//! The batch script: one shard a task of a job array.
//!
//! Every shard's folder is made before the job is submitted, plan and all, so that a task has
//! nothing to do but to go on with a session; the first time, the second time after it was
//! lost, or when Slurm itself requeues it. `ended` in the folder tells a task that came to its
//! end (and how) from one that was lost.

use anyhow::Result;
use std::path::{Path, PathBuf};
use vmeter_base::shell::quote;
use vmeter_session::failure::usage;

/// Name of the script in the folder.
pub(super) const SCRIPT: &str = "job.sh";
/// Exit status of a task that came to its end.
pub(super) const ENDED: &str = "ended";

/// Folder of shard `index`, from 1.
pub(super) fn shard_dir(dir: &Path, index: u32) -> PathBuf {
    dir.join("shards").join(index.to_string())
}

/// What the tasks print.
pub(super) fn log(dir: &Path, index: u32) -> PathBuf {
    dir.join("log").join(format!("{index}.txt"))
}

/// What the script is made of.
#[derive(Debug, Clone)]
pub(super) struct Job<'a> {
    /// The command of vmeter that goes on with a shard.
    pub command: &'a str,
    /// Folder of it all; absolute.
    pub dir: &'a Path,
    /// vmeter itself; absolute.
    pub vmeter: &'a Path,
    /// Where the user typed the command, for paths that are relative to it.
    pub working_dir: &'a Path,
    /// Options for sbatch, as `#SBATCH` lines.
    pub options: &'a [String],
    /// `--pin`, which is no part of a session.
    pub pin: Option<&'a str>,
}

impl Job<'_> {
    /// The script's text.
    ///
    /// # Errors
    /// Class usage: options or paths that a `#SBATCH` line cannot hold.
    pub fn script(&self) -> Result<String> {
        let (dir, cwd) = (plain(self.dir)?, plain(self.working_dir)?);
        let mut lines = vec![
            "#!/bin/sh".to_owned(),
            "# Each task runs one shard. To submit by hand: sbatch --array=SHARDS this-file"
                .to_owned(),
            "#SBATCH --job-name=vmeter".to_owned(),
            "#SBATCH --nodes=1".to_owned(),
            "#SBATCH --ntasks=1".to_owned(),
            "#SBATCH --exclusive".to_owned(),
            "#SBATCH --open-mode=append".to_owned(),
            format!("#SBATCH --output=\"{dir}/log/%a.txt\""),
            format!("#SBATCH --chdir=\"{cwd}\""),
        ];
        for option in self.options {
            if !option.starts_with('-') || option.chars().any(char::is_control) {
                return Err(usage(format!(
                    "--sbatch {option:?}: expected an option of sbatch, such as --sbatch=--time=30"
                )));
            }
            lines.push(format!("#SBATCH {option}"));
        }
        let pin = self.pin.map(|cpus| format!(" --pin {}", quote(cpus))).unwrap_or_default();
        let vmeter = quote(&self.vmeter.display().to_string());
        lines.extend([
            format!("shard={}/shards/$SLURM_ARRAY_TASK_ID", quote(dir)),
            format!("rm -f \"$shard/{ENDED}\""),
            format!(
                "{vmeter} {} --resume \"$shard\" --trust --quiet{pin} >/dev/null",
                self.command
            ),
            "status=$?".to_owned(),
            format!("echo $status >\"$shard/{ENDED}.partial\""),
            format!("mv \"$shard/{ENDED}.partial\" \"$shard/{ENDED}\""),
            "exit $status".to_owned(),
        ]);
        Ok(lines.join("\n") + "\n")
    }
}

/// A path that stands in a `#SBATCH` line as it is: in file names Slurm replaces `%` and `\`.
fn plain(path: &Path) -> Result<&str> {
    let odd = |c: char| c.is_control() || "%\"\\".contains(c);
    path.to_str().filter(|text| path.is_absolute() && !text.contains(odd)).ok_or_else(|| {
        usage(format!(
            "{}: a Slurm job script cannot hold this path. The paths of --save DIR and of \
                the working folder must be UTF-8, without control characters and without these \
                three characters: % \\ \"",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job<'a>(dir: &'a Path, options: &'a [String]) -> Job<'a> {
        let (vmeter, working_dir) = (Path::new("/opt/my tools/vmeter"), Path::new("/home/u"));
        Job { command: "sweep", dir, vmeter, working_dir, options, pin: Some("0-1") }
    }

    #[test]
    fn a_task_goes_on_with_its_shard() {
        let options = ["--time=10".to_owned()];
        let script = job(Path::new("/shared/my sweep"), &options).script().unwrap();
        for line in [
            "#SBATCH --output=\"/shared/my sweep/log/%a.txt\"",
            "#SBATCH --exclusive",
            "#SBATCH --time=10",
            "shard='/shared/my sweep'/shards/$SLURM_ARRAY_TASK_ID",
            "'/opt/my tools/vmeter' sweep --resume \"$shard\" --trust --quiet --pin 0-1 >/dev/null",
        ] {
            assert!(script.lines().any(|l| l == line), "{line}\n{script}");
        }
    }

    #[test]
    fn what_a_script_cannot_hold_is_refused() {
        let two_lines = ["--time=1\nrm -rf /".to_owned()];
        assert!(job(Path::new("/a"), &two_lines).script().is_err());
        assert!(job(Path::new("/a"), &["debug".to_owned()]).script().is_err());
        for dir in ["/a%j", "relative", "/a\"b", "/a\nb"] {
            assert!(job(Path::new(dir), &[]).script().is_err(), "{dir}");
        }
    }
}
