//! What a VMM back end is, and which there are.
//!
//! A back end turns a machine specification into something that can be booted: a
//! command line, or a script that is played. It never runs the machine. Whatever
//! it decides for the user comes back with a reason, which the report shows.

use crate::accel::AccelError;
use crate::backends;
use crate::backends::mock::script::{Script, ScriptError};
use crate::capabilities::CapabilityError;
use crate::plan::LaunchPlan;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use vmeter_model::{Accel, MachineSpec};

/// Every back end, in the order in which they are asked. A new one is a file and a
/// line here.
pub fn all() -> [&'static dyn Backend; 3] {
    [&backends::mock::Mock, &backends::command::UserCommand, &backends::qemu::Qemu]
}

/// A kind of VMM.
pub trait Backend: Sync {
    /// Name, as `--vmm` has it.
    fn name(&self) -> &'static str;

    /// True if this specification is for it.
    fn accepts(&self, spec: &MachineSpec) -> bool;

    /// Works the machine out.
    ///
    /// # Errors
    /// A value that the back end does not know (with the valid ones), a file or
    /// program that is missing, or a combination that cannot work.
    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError>;
}

/// A specification with the files that others made for it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What the user asked for.
    pub spec: &'a MachineSpec,
    /// vmeter's cache folder.
    pub cache: &'a Path,
    /// Kernel to boot where the specification names none.
    pub kernel: Option<&'a Path>,
    /// Initial RAM disk to use where the specification names none: vmeter's own,
    /// whose init understands `vmeter.*` on the kernel command line.
    pub initrd: Option<&'a Path>,
    /// Image of the root file system, for `--root dax` and `--root virtio-blk`.
    pub root_image: Option<&'a Path>,
}

impl<'a> Request<'a> {
    /// The kernel in effect.
    pub fn kernel(&self) -> Option<&'a Path> {
        self.spec.kernel.as_deref().or(self.kernel)
    }

    /// The initial RAM disk in effect.
    pub fn initrd(&self) -> Option<&'a Path> {
        self.spec.initrd.as_deref().or(self.initrd)
    }

    /// True when the guest's init is vmeter's.
    pub fn own_init(&self) -> bool {
        self.spec.initrd.is_none() && self.initrd.is_some()
    }
}

/// A machine that can be booted.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Name of the back end that described it.
    pub backend: &'static str,
    /// The command line; empty for a machine without a process.
    pub argv: Vec<OsString>,
    /// What was chosen: (what, value, why or how to change it).
    pub chosen: Vec<(String, String, String)>,
    /// Versions and digests: `vmm`, `kernel`, `firmware`, `initrd`.
    pub provenance: BTreeMap<String, String>,
    /// How guest instructions are executed, where known.
    pub accel: Option<Accel>,
    /// True if the VMM is QEMU, by name or by its own word.
    pub is_qemu: bool,
    /// True if vmeter may add arguments.
    pub may_inject: bool,
    /// Arguments that put the console on standard output, added by `plan`.
    pub console: Vec<String>,
    /// Kernel in use, where known.
    pub kernel: Option<PathBuf>,
    /// True when the guest's init is vmeter's.
    pub own_init: bool,
    /// Played instead of a process.
    pub script: Option<Script>,
}

impl Machine {
    /// A fresh plan for one launch.
    pub fn plan(&self) -> LaunchPlan {
        let mut plan = LaunchPlan {
            argv: self.argv.clone(),
            may_inject: self.may_inject,
            ..LaunchPlan::default()
        };
        if !self.console.is_empty() {
            plan.inject(&self.console.iter().map(String::as_str).collect::<Vec<_>>());
        }
        plan
    }

    /// The command line as text, for records.
    pub fn argv_text(&self) -> Vec<String> {
        self.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn choose(&mut self, what: &str, value: impl Into<String>, why: impl Into<String>) {
        self.chosen.push((what.to_owned(), value.into(), why.into()));
    }
}

/// Why a machine cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A value outside the list.
    #[error("--{option} {value}: expected {}", one_of(.valid))]
    Unknown {
        /// Option, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is valid.
        valid: Vec<String>,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Combination(String),
    /// A file that cannot be read.
    #[error("{what} {path}: {error}")]
    File {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// The VMM cannot be asked what it can do.
    #[error(transparent)]
    Capabilities(#[from] CapabilityError),
    /// No usable accelerator.
    #[error(transparent)]
    Accel(#[from] AccelError),
    /// The mock's script is wrong.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The VMM cannot be found.
    #[error(transparent)]
    Program(#[from] crate::launch::LaunchError),
}

impl MachineError {
    pub(crate) fn unknown(option: &'static str, value: &str, valid: &[&str]) -> Self {
        let valid = valid.iter().map(|v| (*v).to_owned()).collect();
        Self::Unknown { option, value: value.to_owned(), valid }
    }
}

fn one_of(valid: &[String]) -> String {
    match valid {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// Describes the machine of a specification.
///
/// # Errors
/// As [`Backend::describe`].
pub fn describe(request: &Request<'_>) -> Result<Machine, MachineError> {
    match all().into_iter().find(|b| b.accepts(request.spec)) {
        Some(backend) => backend.describe(request),
        None => Err(MachineError::unknown(
            "vmm",
            request.spec.vmm.as_deref().unwrap_or_default(),
            &["qemu", "mock", "the path of a VMM"],
        )),
    }
}
