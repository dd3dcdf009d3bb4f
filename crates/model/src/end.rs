//! What ended a run, by evidence.

use serde::{Deserialize, Deserializer, Serialize};

/// What a run was measured to, of whose guest nothing is known.
pub const VMM_EXIT: &str = "VMM's exit";

vmeter_base::words! {
    /// Why a run is over.
    pub enum Cause {
        /// The guest powered its machine off.
        PowerOff = "power-off",
        /// The guest's kernel restarted its machine in order, and its VMM ends instead of
        /// booting again.
        Restart = "restart",
        /// The machine was reset, and no kernel had said that it would restart it.
        Reset = "reset",
        /// The guest's CPU met a fault that it could not even report.
        TripleFault = "triple-fault",
        /// The guest's kernel panicked.
        Panic = "panic",
        /// The guest's kernel panicked for lack of memory.
        OutOfMemory = "out-of-memory",
        /// The guest went on, but its kernel had killed a program for lack of memory.
        Starved = "starved",
        /// The ready point (`--until`) was reached.
        Ready = "ready",
        /// The VMM exited with status 0; nothing says what its guest did.
        Exit = "exit",
        /// The VMM exited with another status, or left processes behind.
        Failure = "vmm-failure",
        /// The VMM exited with status 0, and the kernel that it was given is cut short.
        CutShort = "kernel-cut-short",
        /// A signal killed the VMM.
        Killed = "killed",
        /// The VMM was told to end by somebody else: a signal that it heeded, a monitor.
        Quit = "quit",
        /// What started the VMM ended it by a signal and ended well: its way to end it.
        Launcher = "ended-by-launcher",
        /// vmeter ended it because its console said that the kernel panicked; the kernel's own
        /// log does not.
        Imitated = "imitated-panic",
        /// The line that was waited for came on a console that several VMMs print to.
        AnyVmm = "line-of-any-vmm",
        /// The VMM went on when what had started it was over, and vmeter let go of it.
        RunsOn = "vm-runs-on",
        /// The firmware said that it found nothing to boot.
        NothingToBoot = "nothing-to-boot",
        /// The timeout passed.
        TimedOut = "timed-out",
        /// The user interrupted it.
        Interrupted = "interrupted",
    }
}

impl Cause {
    /// What happened, as a sentence without its full stop.
    pub const fn sentence(self) -> &'static str {
        match self {
            Cause::PowerOff => "the guest powered its machine off",
            Cause::Restart => "the guest restarted its machine instead of powering it off",
            Cause::Reset => {
                "the guest's machine was reset, and its kernel logged no reason: the \
                guest crashed, or another cause reset the machine"
            }
            Cause::TripleFault => "the guest crashed: a triple fault reset its machine",
            Cause::Panic => "the guest panicked",
            Cause::OutOfMemory => "the guest panicked, out of memory",
            Cause::Starved => "the guest ran out of memory, and its kernel killed a program",
            Cause::Ready => "the ready point was reached",
            Cause::Exit => "the VMM exited",
            Cause::Failure => "the VMM failed",
            Cause::CutShort => {
                "the guest's kernel file is truncated, and there is no sign that \
                the kernel ran"
            }
            Cause::Killed => "the VMM was killed",
            Cause::Quit => "the VMM was ended by a request from outside its guest",
            Cause::Launcher => "the VMM's launcher ended the VMM",
            Cause::Imitated => {
                "vmeter ended the run because the console seemed to show a kernel \
                panic; the kernel's log has no panic"
            }
            Cause::AnyVmm => {
                "vmeter waited for a line on a console that several VMMs print to, \
                so it cannot tell which guest printed the line; give each VMM a console file of \
                its own (-serial file:FILE)"
            }
            Cause::RunsOn => "vmeter stopped following the VM, which keeps running",
            Cause::NothingToBoot => "no kernel was seen: the firmware found nothing to boot",
            Cause::TimedOut => "timed out",
            Cause::Interrupted => "interrupted",
        }
    }
}

/// How a run ended, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// What ended it.
    pub cause: Cause,
    /// How that is known, in words; of a ready point, which.
    pub evidence: String,
}

impl End {
    /// An end and its evidence.
    pub fn new(cause: Cause, evidence: impl Into<String>) -> Self {
        End { cause, evidence: evidence.into() }
    }

    /// What of it times must have in common to be compared: a guest's own shutdown is one,
    /// by power-off or, where a machine has none, by a restart; each ready point is another.
    pub fn measured_to(&self) -> String {
        match self.cause {
            Cause::PowerOff | Cause::Restart => "shutdown".to_owned(),
            Cause::Ready => format!("ready point {}", self.evidence),
            Cause::Exit => VMM_EXIT.to_owned(),
            other => other.word().to_owned(),
        }
    }

    /// Reads an end; one of a cause that only a later vmeter knows is none.
    pub(crate) fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        Ok(serde_json::from_value(value).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_times_are_measured_to() {
        let to = |cause, evidence: &str| End::new(cause, evidence).measured_to();
        assert_eq!(to(Cause::PowerOff, "QMP"), to(Cause::Restart, "the log"));
        assert_ne!(to(Cause::PowerOff, ""), to(Cause::Exit, ""));
        assert_ne!(to(Cause::Ready, "userspace"), to(Cause::Ready, "line:x"));
        for cause in Cause::ALL {
            let end = End::new(*cause, "e");
            let json = serde_json::to_string(&end).expect("JSON");
            assert_eq!(serde_json::from_str::<End>(&json).expect("read"), end);
        }
    }
}
