//! Results of `vmeter findings`.

use crate::estimate::Estimate;
use crate::result::Envelope;
use crate::run::SessionMachine;
use serde::{Deserialize, Serialize};

vmeter_base::words! {
    /// What is said of a known cause of a slow boot.
    pub enum FindingVerdict {
        /// The machine without it is faster, beyond noise.
        Confirmed = "confirmed",
        /// No saving was found that noise does not explain.
        NotReproduced = "not reproduced",
        /// It can't be asked here: the reason says why.
        Inapplicable = "inapplicable",
        /// Its machines have not been booted often enough yet: the session is not finished.
        Unfinished = "unfinished",
    }
}

vmeter_base::words! {
    /// What it takes to be rid of a cause, the cheapest first.
    pub enum Price {
        /// A word on the kernel's command line.
        KernelParameter = "kernel parameter",
        /// An option of the VMM.
        VmmOption = "VMM option",
        /// Another way of starting the VMM.
        Launcher = "launcher",
        /// Another firmware.
        Firmware = "firmware",
        /// Other files in the guest.
        GuestFiles = "guest's files",
        /// Another kernel.
        Kernel = "kernel",
        /// The machine would be another.
        OtherMachine = "another machine",
    }
}

vmeter_base::words! {
    /// How it is known which phase moved.
    pub enum PhaseBy {
        /// By the blocks' times, beyond noise.
        Time = "time",
        /// By one boot each in virtual time.
        VirtualTime = "virtual time",
    }
}

/// Which machines a session compares for one finding; kept with the session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedFinding {
    /// Its id in the catalogue.
    pub id: String,
    /// What is compared, the headline first; none where it does not apply.
    pub contrasts: Vec<PlannedContrast>,
    /// Why it does not apply, in words.
    pub inapplicable: Option<String>,
}

/// Two machines of a session, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedContrast {
    /// What it is, where a finding has several.
    pub name: String,
    /// Label of the machine that has the cause.
    pub with: String,
    /// Label of the machine that is rid of it; none where the cause is a part of a boot that is
    /// measured as it is.
    pub without: Option<String>,
    /// Phases and activities in which it is expected, by their names.
    pub expected: Vec<String>,
    /// How many units the two machines differ in, and what one is.
    pub units: Option<(f64, String)>,
    /// Labels of the same two machines in virtual time.
    pub exact: Option<(String, String)>,
}

/// A phase or an activity in which the two machines differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    /// Its name.
    pub name: String,
    /// The phase that it is, or is in.
    pub phase: String,
    /// What the machine without the cause saves there, s, block by block.
    pub saving: Estimate,
    /// Adjusted for the phases of this comparison and for all comparisons of the session.
    pub p_value: f64,
}

/// The same two machines in virtual time: one boot each, without noise.
#[derive(Debug, Clone, PartialEq)]
pub struct ExactContrast {
    /// Saving of the whole boot, s of virtual time (an instruction is a nanosecond).
    pub saving_s: f64,
    /// The whole boot with the cause, s of virtual time.
    pub baseline_s: f64,
    /// The phase that differs most.
    pub phase: String,
    /// Saving in it.
    pub phase_saving_s: f64,
}

impl Contrast {
    /// The phase that moved: by time, or where time tells too little of it, by virtual time.
    pub fn phase(&self) -> Option<(&str, PhaseBy)> {
        let by_time = self.moved.first().map(|moved| (moved.phase.as_str(), PhaseBy::Time));
        let exact = self.exact.as_ref().filter(|_| self.saves || self.p_value.is_nan());
        by_time.or_else(|| exact.map(|exact| (exact.phase.as_str(), PhaseBy::VirtualTime)))
    }
}

/// What one comparison says.
#[derive(Debug, Clone, PartialEq)]
pub struct Contrast {
    /// What it is, where a finding has several.
    pub name: String,
    /// Label of the machine that has the cause.
    pub with: String,
    /// Label of the machine without; none for a part of a boot.
    pub without: Option<String>,
    /// Whole boots with the cause, s.
    pub baseline: Estimate,
    /// Whole boots without it, s; of a part, the boots less that part.
    pub changed: Estimate,
    /// What is saved, s, block by block.
    pub saving: Estimate,
    /// CPU time of the VMM that is saved, s, block by block.
    pub cpu_saving: Estimate,
    /// Where: beyond noise, the largest first.
    pub moved: Vec<Moved>,
    /// What is saved where it is resolved best, s: in the part that moved most, in the whole boot,
    /// or in CPU time.
    pub found: Estimate,
    /// Where that is; none of a whole boot of which nothing can be said. Of a comparison that is
    /// not decided: what has the smallest p-value.
    pub found_in: Option<String>,
    /// Adjusted for the quantities looked at and for all comparisons; NaN of a part that only
    /// virtual time shows, which has no noise.
    pub p_value: f64,
    /// The smallest saving, s, that these runs would have shown in four of five sessions, where
    /// it was expected, or else in the whole boot.
    pub detectable_s: Option<f64>,
    /// The part that this is of; none of the whole boot.
    pub detectable_in: Option<String>,
    /// The same of the whole boot, s.
    pub detectable_whole_s: Option<f64>,
    /// Units that the machines differ in, and the saving of one, s, where it was found.
    pub unit: Option<(String, Estimate)>,
    /// VMEXITs that one unit takes, where KVM counted them.
    pub exits_per_unit: Option<Estimate>,
    /// In virtual time.
    pub exact: Option<ExactContrast>,
    /// Whole boots block by block, s: with, without.
    pub samples_s: Vec<(f64, f64)>,
    /// True if it is decided as a saving.
    pub saves: bool,
    /// True if it is decided as the opposite.
    pub costs: bool,
}

/// A known cause and what came of it here.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingRow {
    /// Its id in the catalogue.
    pub id: String,
    /// What it is, in a few words.
    pub title: String,
    /// What it is, in a sentence.
    pub what: String,
    /// What was published of it, in words.
    pub published: String,
    /// What stands for it here, where it can't be had itself; else empty.
    pub stand_in: String,
    /// Where it was expected.
    pub expected: Vec<String>,
    /// What it takes to be rid of it.
    pub price: Price,
    /// How, in words.
    pub remedy: String,
    /// What was compared, the headline first.
    pub contrasts: Vec<Contrast>,
    /// The verdict.
    pub verdict: FindingVerdict,
    /// Why, in words.
    pub reason: String,
}

/// What a character on a console costs.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsoleCost {
    /// The console, e.g. `ttyS0`.
    pub console: String,
    /// Seconds a character: block by block, from two amounts.
    pub per_char: Estimate,
    /// Exits by its I/O ports a character, where KVM's trace counted them.
    pub exits_per_char: Option<Estimate>,
    /// The samples.
    pub samples_s: Vec<f64>,
}

/// The console's share of a boot that prints its whole log.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsoleShare {
    /// Bytes that the verbose boot printed.
    pub bytes: Estimate,
    /// Bytes times what each costs, over the boot: a share of 1.
    pub share: Estimate,
}

/// Result of `vmeter findings`.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingsResult {
    /// Head.
    pub envelope: Envelope,
    /// The machine that was asked about.
    pub machine: SessionMachine,
    /// True if it is a command line of the user's own.
    pub own: bool,
    /// Its boots, s; none if it was not booted or never got to its end.
    pub baseline: Option<Estimate>,
    /// The findings: of the catalogue in its order, of a user's machine the cheapest first.
    pub rows: Vec<FindingRow>,
    /// What a character costs on each console, where that was measured.
    pub consoles: Vec<ConsoleCost>,
    /// The console's share of a verbose boot.
    pub console_share: Option<ConsoleShare>,
    /// Measured boots.
    pub boots: usize,
    /// From the first boot's begin to the last one's end, s, pauses and all.
    pub took_s: f64,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}
