//! What a VMM can be asked, and how it is spoken to.
//!
//! Whoever records a boot looks at [`Abilities`] and lets the [`Dialect`] add what the
//! guest's kernel is to be told, so that no other code asks which VMM it is.

use crate::plan::LaunchPlan;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::path::PathBuf;

/// What watching may ask of a VMM. Of one that nothing is known of: nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// It logs its own trace events (`-trace`, `-D` and `-msg`, as QEMU has them).
    pub trace_events: bool,
    /// It loads a TCG plugin (`-plugin`).
    pub plugins: bool,
    /// The debug port of its firmware can be had (`-device isa-debugcon`).
    pub firmware_log: bool,
    /// It has a monitor that speaks QMP.
    pub monitor: bool,
    /// The guest's RAM is mapped until its process is gone. Otherwise it can be read only
    /// if the run is ended while the guest runs.
    pub ram_at_exit: bool,
    /// The option of an API by which it can be started with nothing on its command line.
    pub api: Option<&'static str>,
    /// What the file name of its image contains: how it is known among a wrapper's children.
    pub image: Option<&'static str>,
}

/// How a kind of VMM is spoken to.
pub trait Dialect: Sync + Debug {
    /// What the VMM is called in sentences.
    fn vmm(&self) -> &'static str;

    /// True if a program of this name is it.
    fn is_named(&self, program: &OsStr) -> bool;

    /// The option by which it says its version.
    fn version_option(&self) -> &'static str;

    /// True for the first line that this option prints.
    fn says_so(&self, version_line: &str) -> bool;

    /// What it can be asked.
    fn abilities(&self) -> Abilities;

    /// Reads a command line of the user's own.
    fn read(&self, argv: &[OsString]) -> Told;

    /// The kernel's command line of a plan, if the plan names a kernel.
    fn kernel_line(&self, plan: &LaunchPlan) -> Option<String>;

    /// Adds words to it; false if the plan names no kernel.
    fn add_kernel_words(&self, plan: &mut LaunchPlan, words: &str) -> bool;
}

/// Where the guest's console goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Console {
    /// To standard output, by which of the VMM's options or habits.
    Stdout(&'static str),
    /// Elsewhere, and what would bring it to standard output.
    Elsewhere(&'static str),
    /// Nothing says so, and these arguments bring it to standard output.
    Unsaid(&'static [&'static str]),
}

/// What a command line says of its machine.
#[derive(Debug)]
pub struct Told {
    /// The accelerator as the VMM names it, and why it is that.
    pub accel: (String, &'static str),
    /// The guest's kernel, where it is given directly.
    pub kernel: Option<PathBuf>,
    /// Its initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The firmware's file, by name or path.
    pub firmware: Option<PathBuf>,
    /// The guest's console.
    pub console: Console,
    /// The configuration file that it names.
    pub config: Option<ConfigFile>,
    /// What the user should know: (what, value, why).
    pub remarks: Vec<(&'static str, String, String)>,
}

/// A configuration file in JSON that a VMM is told of on its command line.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigFile {
    /// Where its path is on the command line.
    pub argument: usize,
    /// What it is called in a run's folder.
    pub name: &'static str,
    /// What it says.
    pub content: serde_json::Value,
    /// The user's own, which is never written to: a changed one is a copy.
    pub given: Option<PathBuf>,
    /// True once something was added to the user's own.
    pub changed: bool,
}
