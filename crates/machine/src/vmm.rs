//! What a VMM can be asked, and how it is spoken to.
//!
//! Whoever records a boot looks at [`Abilities`] and lets the [`Dialect`] add what the
//! guest's kernel is to be told, so that no other code asks which VMM it is.

use crate::snapshots::Snapshots;
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
    /// It reports events in JSON to a descriptor (`--event-monitor fd=N`, as cloud-hypervisor
    /// has it).
    pub event_monitor: bool,
    /// The guest's RAM is mapped until its process is gone. Otherwise it can be read only
    /// if the run is ended while the guest runs.
    pub ram_at_exit: bool,
    /// The option of an API by which it can be started with nothing on its command line.
    pub api: Option<&'static str>,
    /// The option by which this machine is restored from a snapshot, which is no boot: what its
    /// kernel has logged and traced is of the boot before it.
    pub restored: Option<&'static str>,
    /// What the file name of its image contains: how it is known among a wrapper's children.
    pub image: Option<&'static str>,
}

/// vmeter's own init is told so to restart the machine at its end.
pub(crate) const EXITS_BY_RESET: &str = "vmeter.exit=reset";

/// True for a kernel line that tells it so.
pub(crate) fn exits_by_reset(line: Option<String>) -> bool {
    line.is_some_and(|line| line.split(' ').any(|word| word == EXITS_BY_RESET))
}

/// How a kind of VMM is spoken to.
pub trait Dialect: Sync + Debug {
    /// What the VMM is called in sentences.
    fn vmm(&self) -> &'static str;

    /// How it can be had where it is not installed.
    fn mend(&self) -> &'static str {
        "install it, or give its path"
    }

    /// True if a program of this name is it.
    fn is_named(&self, program: &OsStr) -> bool;

    /// The option by which it says its version.
    fn version_option(&self) -> &'static str {
        "--version"
    }

    /// True for the first line that this option prints.
    fn says_so(&self, version_line: &str) -> bool;

    /// The option by which a command line restores a snapshot, if it does.
    fn restores(&self, argv: &[OsString]) -> Option<&'static str> {
        let _ = argv;
        None
    }

    /// How it saves and restores a machine by its API, if vmeter knows.
    fn snapshots(&self) -> Option<&'static dyn Snapshots> {
        None
    }

    /// Words with which a machine of it begins after its name, as in `lkvm run`.
    fn commands(&self) -> &'static [&'static str] {
        &[]
    }

    /// True for a command line that asks something and boots nothing: how the VMM is called, what
    /// it can do.
    fn is_probe(&self, argv: &[OsString]) -> bool {
        argv.iter().skip(1).any(|word| word == "--version" || word == "--help" || word == "-h")
    }

    /// What it can be asked.
    fn abilities(&self) -> Abilities;

    /// What it can be asked for the machine of a command line.
    fn abilities_for(&self, argv: &[OsString]) -> Abilities {
        let (abilities, restored) = (self.abilities(), self.restores(argv));
        // A snapshot has no device that its machine had not.
        let firmware_log = abilities.firmware_log && restored.is_none() && self.is_x86(argv);
        Abilities { restored, firmware_log, ..abilities }
    }

    /// True if the machine of a command line has x86's I/O ports.
    fn is_x86(&self, argv: &[OsString]) -> bool {
        let _ = argv;
        true
    }

    /// What it says itself in a line of its guest's console, if it logs there, without what it
    /// puts before each line.
    fn own_words<'l>(&self, line: &'l str) -> Option<&'l str> {
        let _ = line;
        None
    }

    /// What is said of a write of a byte to a port by which its guest tells it how far it is.
    fn debug_code(&self, port: u32, value: u8) -> Option<String> {
        let _ = (port, value);
        None
    }

    /// True if its guest can tell it that it has booted (`--until guest-booted`).
    fn is_told_of_boot(&self) -> bool {
        false
    }

    /// Reads a command line of the user's own.
    fn read(&self, argv: &[OsString]) -> ParsedCommandLine;

    /// The kernel's command line, if `argv` or `config` names a kernel.
    fn kernel_line(&self, argv: &[OsString], config: Option<&ConfigFile>) -> Option<String>;

    /// True if this machine can't be powered off, so that its guest ends by restarting it, and
    /// its VMM with it.
    fn ends_by_reset(&self, argv: &[OsString], config: Option<&ConfigFile>) -> bool {
        exits_by_reset(self.kernel_line(argv, config))
    }

    /// True if its user wants it to end where its guest restarts its machine.
    fn ends_at_restart(&self, argv: &[OsString]) -> bool {
        let _ = argv;
        false
    }

    /// Adds words to it; false if no kernel is named.
    fn add_kernel_words(
        &self,
        argv: &mut Vec<OsString>,
        config: Option<&mut ConfigFile>,
        words: &str,
    ) -> bool;
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
pub struct ParsedCommandLine {
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
