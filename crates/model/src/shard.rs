//! One session carried out by several hosts.
//!
//! Every host works out the same plan from the same seed and carries out its own part of
//! it; a run keeps its number in the whole plan wherever it ran, so that putting parts
//! together is a union of folders.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Most parts that a plan is cut into.
pub const MAX_SHARDS: u32 = 10_000;

/// Which part of a plan: `2/4` is the second of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// From 1.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = || {
            let (index, of) = text.split_once('/')?;
            Some(Shard { index: index.parse().ok()?, of: of.parse().ok()? })
        };
        numbers().filter(|s| (1..=s.of).contains(&s.index) && s.of <= MAX_SHARDS).ok_or_else(|| {
            format!("{text:?}: expected I/N such as 2/4, the second of four parts, with I from 1 to N and N at most {MAX_SHARDS}")
        })
    }
}

/// What one part has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlan {
    /// Which part.
    pub shard: Shard,
    /// The runs of the session's plan that are its own, by number.
    pub runs: Vec<u32>,
}

/// What one host did of a session that several had a part in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostShare {
    /// The host, as in [`crate::run::SessionRecord::host`].
    pub host: BTreeMap<String, Value>,
    /// The runs that it carried out, by number.
    pub runs: Vec<u32>,
}

/// What a host was found to add to every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostEffect {
    /// Its name.
    pub name: String,
    /// Its CPU model.
    pub cpu_model: String,
    /// Its measured runs that reached their end.
    pub runs: usize,
    /// Its times over those of the average host (geometrically), the points' differences
    /// taken out; none where it can't be told from the points it ran.
    pub factor: Option<f64>,
    /// The factor's 95 % interval; none without a factor or with too few runs.
    pub factor_ci95: Option<[f64; 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read_as_they_are_written() {
        let shard: Shard = "2/4".parse().unwrap();
        assert_eq!((shard.index, shard.of, shard.to_string().as_str()), (2, 4, "2/4"));
        for wrong in ["", "0/4", "5/4", "1", "1/0", "a/b", "1/4/2", "-1/4", "1/10001"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
