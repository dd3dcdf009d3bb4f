//! How a guest's instructions are executed.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// By the CPU.
    Kvm,
    /// By QEMU's translator.
    Tcg,
    /// By the translator, in virtual time: one instruction is one nanosecond, and
    /// every run is the same.
    Icount,
}

impl Accel {
    /// As `--accel`, records and exports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
            Self::Icount => "icount",
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
            Self::Only(accel) => accel.name(),
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

/// A name that is no accelerator's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, kvm, tcg or icount, found {0:?}")]
pub struct UnknownAccel(pub String);

impl FromStr for Accel {
    type Err = UnknownAccel;

    fn from_str(name: &str) -> Result<Self, UnknownAccel> {
        let all = [Self::Kvm, Self::Tcg, Self::Icount];
        all.into_iter().find(|a| a.name() == name).ok_or_else(|| UnknownAccel(name.to_owned()))
    }
}

impl FromStr for AskedAccel {
    type Err = UnknownAccel;

    fn from_str(name: &str) -> Result<Self, UnknownAccel> {
        if name == Self::Auto.name() {
            Ok(Self::Auto)
        } else {
            name.parse().map(Self::Only)
        }
    }
}

impl TryFrom<String> for AskedAccel {
    type Error = UnknownAccel;

    fn try_from(name: String) -> Result<Self, UnknownAccel> {
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
