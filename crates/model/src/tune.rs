//! Results of `vmeter tune`.

use crate::estimate::Estimate;
use crate::result::Envelope;
use crate::run::SessionMachine;

vmeter_base::words! {
    /// What a machine may have to keep besides its vCPUs, memory, disks, network cards, ready point
    /// and power-off: what `--keep` takes.
    pub enum Keep {
        /// The ACPI tables, the power button and power-off by ACPI.
        Acpi = "acpi",
        /// Hotplug of devices, and the slots for it.
        Hotplug = "hotplug",
        /// A console that shows what the guest prints.
        Console = "console",
        /// The kernel's own log on the console.
        Log = "log",
        /// A restart from inside.
        Reboot = "reboot",
        /// Network cards and protocols, also those that the guest does not use.
        Network = "network",
        /// A graphics card.
        Display = "display",
        /// Keyboard and mouse.
        Input = "input",
        /// USB.
        Usb = "usb",
        /// Serial ports from the second one on.
        Serial = "serial",
        /// The firmware's boot menu, option ROMs and boot from a disk.
        Firmware = "firmware",
        /// Each feature of the CPU model.
        Cpu = "cpu",
        /// The chipset, with each of its PCI functions.
        Chipset = "chipset",
        /// Names of devices, and their order.
        Names = "names",
        /// Watchdogs, tracers and other checks that find faults in the guest's kernel.
        Debug = "debug",
        /// The kernel's file, unchanged.
        Kernel = "kernel",
        /// The initrd's file, unchanged.
        Initrd = "initrd",
        /// Suspend and resume.
        Suspend = "suspend",
    }
}

vmeter_base::words! {
    /// What `--allow` takes.
    pub enum Allow {
        /// Candidates that make a guest or its data less safe.
        Insecure = "insecure",
        /// Another kernel.
        KernelBuild = "kernel-build",
    }
}

vmeter_base::words! {
    /// How it was checked that two machines are the same in something.
    pub enum Sameness {
        /// Both show the same.
        Same = "same",
        /// They differ.
        Differs = "differs",
        /// They differ, as a step says that it gives up.
        GivenUp = "given up",
        /// Nothing shows it in one of them.
        Unchecked = "could not be checked",
    }
}

/// Something that was compared between the original and the tuned machine.
#[derive(Debug, Clone, PartialEq)]
pub struct InventoryItem {
    /// What.
    pub what: String,
    /// In the original, in words; none where nothing shows it.
    pub original: Option<String>,
    /// In the tuned machine.
    pub tuned: Option<String>,
    /// What came of it.
    pub sameness: Sameness,
}

/// A candidate and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneStep {
    /// Its id in the registry of causes.
    pub id: String,
    /// What it is, in a few words.
    pub title: String,
    /// What it changes, in words.
    pub change: String,
    /// What the watched boot said that it would save, s; none where it does not apply.
    pub predicted: Option<Estimate>,
    /// What it saves, s, block by block, beside all other steps; none where it was not measured by
    /// itself.
    pub saving: Option<Estimate>,
    /// Of no saving, two-sided.
    pub p_value: Option<f64>,
    /// True if the tuned machine has it.
    pub kept: bool,
    /// What it gives up, in words.
    pub gives_up: String,
    /// Why it was kept or not, in words.
    pub reason: String,
    /// True if the machine was booted with it.
    pub booted: bool,
}

/// A phase before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseChange {
    /// Its name.
    pub name: String,
    /// Its length in watched boots of the original, s.
    pub before: Estimate,
    /// In those of the tuned machine, s.
    pub after: Estimate,
}

/// Result of `vmeter tune`.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneResult {
    /// Head.
    pub envelope: Envelope,
    /// The machine that was asked about.
    pub machine: SessionMachine,
    /// Candidates: kept ones first, then those that were booted, then the rest.
    pub steps: Vec<TuneStep>,
    /// What was checked to be the same.
    pub inventory: Vec<InventoryItem>,
    /// Whole boots of the original, s, by the runs that chose nothing.
    pub before: Option<Estimate>,
    /// Whole boots of the tuned machine, s.
    pub after: Option<Estimate>,
    /// How many times as fast the tuned machine is: the original's time over the tuned one's, block by
    /// block. `mean` is the Hodges-Lehmann centre, `ci95` the interval by signed ranks.
    pub ratio: Option<Estimate>,
    /// The same of the VMM's CPU time, which a busy host leaves as it is.
    pub cpu_ratio: Option<Estimate>,
    /// Of a ratio of wall times of 1, two-sided.
    pub p_value: Option<f64>,
    /// Those boots, block by block, s: original, tuned.
    pub samples_s: Vec<(f64, f64)>,
    /// Phases of watched boots.
    pub phases: Vec<PhaseChange>,
    /// The argv to run: the tuned machine's, or the original's where nothing is recommended.
    pub command: Vec<String>,
    /// True if a step is recommended.
    pub recommended: bool,
    /// Why the search ended, in words.
    pub ended: String,
    /// Of the steps that were measured by themselves, those whose saving lies in the interval
    /// predicted, and all.
    pub predictions: (usize, usize),
    /// Boots.
    pub boots: usize,
    /// What they took, s.
    pub took_s: f64,
    /// What they were allowed, s.
    pub budget_s: f64,
    /// Share of the boot below which a step is not worth it.
    pub worth: f64,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}
