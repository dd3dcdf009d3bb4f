//! What a VMM back end is, and which there are.
//!
//! A back end turns a machine specification into something that can be booted: a
//! command line, or a script that is played. It never runs the machine. Whatever
//! it decides for the user comes back with a reason, which the report shows.

use crate::accel::AccelError;
use crate::argv;
use crate::backends;
use crate::backends::mock::script::{Script, ScriptError};
use crate::capabilities::CapabilityError;
use crate::launch::{self, LaunchError};
use crate::plan::LaunchPlan;
use crate::vmm::{Abilities, ConfigFile, Dialect};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use vmeter_model::{Accel, MachineSpec, ResolvedOption};

/// Every back end, in the order in which they are asked. A new one is a file and a
/// line here.
pub fn all() -> &'static [&'static dyn Backend] {
    &[
        &backends::mock::Mock,
        &backends::command::UserCommand,
        &backends::firecracker::Firecracker,
        &backends::cloud_hypervisor::CloudHypervisor,
        &backends::crosvm::Crosvm,
        &backends::kvmtool::Kvmtool,
        // Last: it may ask a program that nobody else knows what it is.
        &backends::qemu::Qemu,
    ]
}

/// What a machine needs before it can be described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: no kernel is booted, or the user brings all there is.
    Nothing,
    /// A kernel as distributions have it.
    Kernel,
    /// An uncompressed kernel, an ELF file.
    Vmlinux {
        /// True if it is entered by PVH.
        pvh: bool,
    },
}

/// A kind of VMM.
pub trait Backend: Sync {
    /// Name.
    fn name(&self) -> &'static str;

    /// What `--vmm` calls it; none if it is not asked for by that option.
    fn option(&self) -> Option<&'static str> {
        Some(self.name())
    }

    /// True if this specification is for it: it names this VMM, by its name or by that of its
    /// file.
    fn accepts(&self, spec: &MachineSpec) -> bool {
        spec.vmm.as_deref().is_some_and(|vmm| argv::is_program(vmm.as_ref(), self.name()))
    }

    /// What it needs for this specification.
    fn needs(&self, spec: &MachineSpec) -> Needs {
        let _ = spec;
        Needs::Nothing
    }

    /// How its VMM is spoken to, if it is one kind of VMM.
    fn dialect(&self) -> Option<&'static dyn Dialect> {
        None
    }

    /// Works the machine out.
    ///
    /// # Errors
    /// A value that the back end does not know (with the valid ones), a file or
    /// program that is missing, or a combination that cannot work.
    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError>;
}

/// The program of a dialect's VMM, by name or path.
///
/// # Errors
/// Not found, which says how it can be had, or found only files that cannot be executed.
pub(crate) fn find(dialect: &dyn Dialect, name: &OsStr) -> Result<PathBuf, LaunchError> {
    launch::find_program(name).map_err(|error| match error {
        LaunchError::NotInPath { program, .. } => {
            LaunchError::NotInPath { program, mend: dialect.mend() }
        }
        other => other,
    })
}

/// The back end that a specification is for.
pub fn of(spec: &MachineSpec) -> Option<&'static dyn Backend> {
    all().iter().copied().find(|backend| backend.accepts(spec))
}

/// How the VMMs that are known are spoken to.
pub fn dialects() -> impl Iterator<Item = &'static dyn Dialect> {
    all().iter().filter_map(|backend| backend.dialect())
}

/// How the VMM is spoken to that an image is, by the name of its file.
pub fn of_image(image: &Path) -> Option<&'static dyn Dialect> {
    let name = image.file_name()?;
    dialects().find(|dialect| dialect.is_named(name))
}

/// As [`of_image`], of what was executed with these arguments: a VMM that is run by a dynamic
/// linker given by name (`ld-linux-x86-64.so.2 --library-path D qemu-system-x86_64 …`) is one too.
pub fn of_exec(image: &Path, argv: &[OsString]) -> Option<&'static dyn Dialect> {
    let name = image.file_name()?.to_string_lossy();
    let linker = ["ld-linux", "ld-musl", "ld64"].iter().any(|begin| name.starts_with(begin));
    let program = argv.iter().skip(1).filter(|_| linker);
    of_image(image).or_else(|| program.map(Path::new).find_map(of_image))
}

/// The option by which what was executed goes on with a VM that was booted before (`-incoming`), if any.
pub fn restores(image: &Path, argv: &[OsString]) -> Option<&'static str> {
    of_exec(image, argv)?.restores(argv)
}

/// What a VMM says itself in a line of its guest's console: which it is, and what.
pub fn own_words(line: &str) -> Option<(&'static str, &str)> {
    dialects().find_map(|dialect| Some((dialect.vmm(), dialect.own_words(line)?)))
}

/// What `--vmm` takes by name.
pub fn options() -> impl Iterator<Item = &'static str> {
    // The last is what is taken where nothing is said.
    all().iter().rev().filter_map(|backend| backend.option())
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
    /// What was chosen for the user.
    pub chosen: Vec<ResolvedOption>,
    /// Versions and digests: `vmm`, `kernel`, `firmware`, `initrd`.
    pub provenance: BTreeMap<String, String>,
    /// How guest instructions are executed, where known.
    pub accel: Option<Accel>,
    /// How the VMM is spoken to; none if it is unknown, or nothing is booted.
    pub dialect: Option<&'static dyn Dialect>,
    /// The configuration file that the command line names, where the machine is in one.
    pub config: Option<ConfigFile>,
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
            config: self.config.clone(),
            dialect: self.dialect,
            may_inject: self.may_inject,
            ..LaunchPlan::default()
        };
        if !self.console.is_empty() {
            plan.inject(&self.console.iter().map(String::as_str).collect::<Vec<_>>());
        }
        plan
    }

    /// What the VMM can be asked.
    pub fn abilities(&self) -> Abilities {
        self.dialect.map_or_else(Abilities::default, |dialect| dialect.abilities_for(&self.argv))
    }

    /// The command line as text, for records.
    pub fn argv_text(&self) -> Vec<String> {
        self.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn choose(&mut self, what: &str, value: impl Into<String>, why: impl Into<String>) {
        self.chosen.push(ResolvedOption::new(what, value, why));
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
    Program(#[from] LaunchError),
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
    if let Some(backend) = of(request.spec) {
        return backend.describe(request);
    }
    let value = request.spec.vmm.as_deref().unwrap_or_default();
    if value.contains('/') {
        launch::find_program(value.as_ref())?;
        return Err(MachineError::Combination(format!(
            "--vmm {value}: neither its name nor its -version output tells which VMM it \
                is; vmeter knows {}. For any other VMM, give the whole command line after -- \
                (vmeter boot -- {value} …)",
            options().collect::<Vec<_>>().join(", ")
        )));
    }
    let valid: Vec<&str> = options().chain(["the path of one"]).collect();
    Err(MachineError::unknown("vmm", value, &valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmm_that_is_none_is_told_the_names_of_all() {
        let error = |vmm: &str| {
            let spec = MachineSpec { vmm: Some(vmm.into()), ..MachineSpec::default() };
            let cache = Path::new("/nonexistent");
            let request =
                Request { spec: &spec, cache, kernel: None, initrd: None, root_image: None };
            describe(&request).expect_err("no VMM").to_string()
        };
        let unknown = error("xen");
        assert!(options().all(|name| unknown.contains(name)), "{unknown}");
        assert_eq!(
            unknown,
            "--vmm xen: expected qemu, kvmtool, crosvm, cloud-hypervisor, firecracker, mock or the \
             path of one"
        );
        assert!(error("/bin/true").contains("/bin/true: neither its name nor its -version"));
        assert!(error("/nonexistent/vmm").contains("No such file"));
    }
}
