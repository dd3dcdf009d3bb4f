//! How a guest's instructions are executed.

use serde::{Deserialize, Serialize};
use std::str::FromStr;
use vmeter_base::words::UnknownWord;

vmeter_base::words! {
    /// How the guest's instructions are executed.
    pub enum Accel {
        /// By the CPU.
        Kvm = "kvm",
        /// By QEMU's translator.
        Tcg = "tcg",
        /// By the translator, in virtual time: one instruction is one nanosecond, and
        /// every run is the same.
        Icount = "icount",
    }
}

/// What `--accel` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AskedAccel {
    /// Whatever this host runs a kernel with.
    Auto,
    /// This one.
    Only(Accel),
}

impl AskedAccel {
    /// As `--accel` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(accel) => accel.word(),
        }
    }
}

impl From<Accel> for AskedAccel {
    fn from(accel: Accel) -> Self {
        Self::Only(accel)
    }
}

impl From<AskedAccel> for String {
    fn from(asked: AskedAccel) -> Self {
        asked.name().to_owned()
    }
}

impl FromStr for AskedAccel {
    type Err = UnknownWord;

    fn from_str(name: &str) -> Result<Self, UnknownWord> {
        if name == Self::Auto.name() {
            return Ok(Self::Auto);
        }
        let with_auto = |mut unknown: UnknownWord| {
            unknown.known.insert(0, Self::Auto.name());
            unknown
        };
        name.parse().map(Self::Only).map_err(with_auto)
    }
}

impl TryFrom<String> for AskedAccel {
    type Error = UnknownWord;

    fn try_from(name: String) -> Result<Self, UnknownWord> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_disk_are_those_of_the_option() {
        for name in ["auto", "kvm", "tcg", "icount"] {
            let asked: AskedAccel = name.parse().expect("a name");
            let json = serde_json::to_string(&asked).expect("JSON");
            assert_eq!(json, format!("{name:?}"));
            assert_eq!(serde_json::from_str::<AskedAccel>(&json).expect("read"), asked);
            if let AskedAccel::Only(accel) = asked {
                assert_eq!(serde_json::to_string(&accel).expect("JSON"), json);
            }
        }
        let error = serde_json::from_str::<AskedAccel>("\"xen\"").expect_err("unknown");
        assert!(error.to_string().contains("auto, kvm, tcg or icount"), "{error}");
    }
}
