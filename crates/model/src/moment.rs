//! The moments of a VMM's process, by name.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who notes a moment. Each has a test that real runs yield all of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// Whoever launches, traces and ends the VMM (`vmeter_machine::launch`).
    Launcher,
    /// Whoever records the run (`vmeter_record::run`).
    Recorder,
}

/// A moment's variants, names on disk and producers in one table.
macro_rules! moments {
    ($($(#[$doc:meta])* $variant:ident = $name:literal by $producer:ident,)*) => {
        /// A moment of the VMM's process.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum Moment {
            $($(#[$doc])* $variant,)*
            /// One that another version of vmeter wrote.
            Unknown(String),
        }

        impl Moment {
            /// Every moment that this version writes.
            pub const ALL: &[Moment] = &[$(Moment::$variant,)*];

            /// Name, as on disk.
            pub fn name(&self) -> &str {
                match self {
                    $(Moment::$variant => $name,)*
                    Moment::Unknown(name) => name,
                }
            }

            /// Who notes it; nobody here, if it is unknown.
            pub fn producer(&self) -> Option<Producer> {
                match self {
                    $(Moment::$variant => Some(Producer::$producer),)*
                    Moment::Unknown(_) => None,
                }
            }
        }

        impl From<&str> for Moment {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Moment::$variant,)*
                    other => Moment::Unknown(other.to_owned()),
                }
            }
        }
    };
}

moments! {
    /// A wrapper (a script, `taskset`) that will execute the VMM was executed.
    WrapperExec = "wrapper-exec" by Launcher,
    /// A wrapper's entry point.
    WrapperEntry = "wrapper-entry" by Launcher,
    /// A wrapper's `main`.
    WrapperMain = "wrapper-main" by Launcher,
    /// The VMM that a wrapper started as a child is gone, and the wrapper goes on.
    WrapperResumed = "wrapper-resumed" by Launcher,
    /// The VMM's `execve` returned in the new image.
    VmmExec = "vmm-exec" by Launcher,
    /// The VMM's entry point: the dynamic linker is done.
    VmmEntry = "vmm-entry" by Launcher,
    /// The VMM's `main`.
    VmmMain = "vmm-main" by Launcher,
    /// The VMM began to exit.
    VmmExiting = "vmm-exiting" by Launcher,
    /// vmeter sent the signal that ends the VMM: at the ready point, the timeout, a Ctrl-C.
    VmmKilled = "vmm-killed" by Launcher,
    /// The VMM is gone.
    VmmExit = "vmm-exit" by Launcher,
    /// vmeter stopped the VMM.
    VmeterHold = "vmeter-hold" by Recorder,
    /// vmeter let the VMM go on.
    VmeterRelease = "vmeter-release" by Recorder,
    /// The console said that the guest is ready (`--until`).
    Ready = "ready" by Recorder,
    /// The machine began to run, by QEMU's own trace.
    VmStart = "vm-start" by Recorder,
}

impl Moment {
    /// The same moment of an image that turned out to be a wrapper's, not the VMM's.
    pub fn of_wrapper(self) -> Self {
        match self {
            Self::VmmExec => Self::WrapperExec,
            Self::VmmEntry => Self::WrapperEntry,
            Self::VmmMain => Self::WrapperMain,
            other => other,
        }
    }
}

impl From<String> for Moment {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.name().to_owned()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_those_of_other_versions_are_kept() {
        for moment in Moment::ALL {
            let json = serde_json::to_string(&(5, moment)).expect("JSON");
            assert_eq!(json, format!("[5,\"{moment}\"]"));
            let (_, back): (i64, Moment) = serde_json::from_str(&json).expect("read");
            assert_eq!(&back, moment);
            assert!(back.producer().is_some());
        }
        let later: Moment = serde_json::from_str("\"vmm-frozen\"").expect("read");
        assert_eq!(later, Moment::Unknown("vmm-frozen".into()));
        assert_eq!(serde_json::to_string(&later).expect("JSON"), "\"vmm-frozen\"");
    }
}
