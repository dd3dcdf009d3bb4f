//! `vmeter shim`: a program in front of a VMM, by which each VM that somebody else starts is
//! recorded. Its records are sessions of the kind `next`, with the origin `shim`.

mod install;
mod records;
mod watch;

pub use install::{install, remove, InstallOptions, Removed};
pub use records::{status, Newest, Standing};
pub use watch::watch;

use crate::look::until_of;
use anyhow::Result;
use regex::Regex;
use std::path::{Path, PathBuf};
use vmeter_machine::launch::shim::Config;
use vmeter_session::failure::{failure, usage, Class};

/// Whose shim is meant where nobody says.
const VMM: &str = "qemu-system-x86_64";
/// What a shim's name begins with where nobody says.
const PREFIX: &str = "vmeter-";

/// A shim that is installed.
#[derive(Debug)]
pub struct Shim {
    /// Its file.
    pub file: PathBuf,
    /// What it stands for.
    pub config: Config,
}

impl Shim {
    /// The shim in a file.
    ///
    /// # Errors
    /// Class answer: there is none. Class usage: what is beside it is no shim's.
    fn of(file: Option<&Path>) -> Result<Self> {
        let file = place(file, Path::new(VMM))?;
        match Config::of(&file).map_err(usage)? {
            Some(config) if is_own(&file, &config) => Ok(Shim { file, config }),
            _ => Err(failure(
                Class::Answer,
                format!(
                    "{}: there is no vmeter shim: make one with `vmeter shim install`, or give \
                     the shim's path with --as FILE",
                    file.display()
                ),
            )),
        }
    }

    /// What its records are called by.
    fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Where a shim is: `file`, or where one of this VMM is put if nobody says.
fn place(file: Option<&Path>, real: &Path) -> Result<PathBuf> {
    if let Some(file) = file {
        return std::path::absolute(file)
            .map_err(|error| usage(format!("--as {}: {error}", file.display())));
    }
    let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let folder = match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from("/usr/local/bin")),
        false => home().map(|home| home.join(".local/bin")),
    };
    let folder =
        folder.ok_or_else(|| usage("HOME is not set: give the path of the shim with --as FILE"))?;
    let mut name = std::ffi::OsString::from(PREFIX);
    name.push(real.file_name().unwrap_or_default());
    Ok(folder.join(name))
}

/// True if the file is the one that was put there with this config.
fn is_own(file: &Path, config: &Config) -> bool {
    let there = file.symlink_metadata();
    there.is_ok_and(|there| there.is_file() && there.len() == config.shim_bytes)
}

/// Refuses what a shim could not do.
fn check(until: Option<&str>, matching: Option<&str>) -> Result<()> {
    until.map(until_of).transpose()?;
    let matching = matching.map(Regex::new).transpose();
    matching.map(drop).map_err(|error| usage(format!("--match: {error}")))
}
