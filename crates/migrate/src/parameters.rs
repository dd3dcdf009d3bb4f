//! What can be set of a migration, and swept.

use crate::error::MigrateError;
use crate::guest::{BUFFER, PAGE};
use crate::result::MigrateWorkload;
use serde_json::{json, Map, Value};
use vmeter_model::run::SessionMachine;
use vmeter_model::sweep::Settings;
use vmeter_model::MachineSpec;

/// Memory of the guest unless it is said, MiB.
pub const DEFAULT_MEMORY_MIB: u32 = 256;
/// Most points of a sweep.
const MAX_POINTS: usize = 1000;
/// Above this the guest's memory is in two pieces on some machine types, MiB.
const MAX_MEMORY_MIB: u32 = 2048;
/// XBZRLE's cache where it is just switched on: QEMU's own default, MiB.
const XBZRLE_MIB: u64 = 64;

/// Names that can be set, with what they are.
pub const NAMES: [(&str, &str); 16] = [
    ("dirty-rate", "MB/s"),
    ("working-set", "MiB that the guest writes in a loop"),
    ("resident", "MiB that hold data"),
    ("written-bytes", "bytes that the guest changes in each dirtied page, 8 to 4096"),
    ("bandwidth", "limit, MB/s, 0 for none"),
    ("downtime-limit", "ms"),
    ("xbzrle", "on, off, or the cache's MiB"),
    ("multifd", "channels, 0 for off"),
    ("multifd-compression", "none, zlib, zstd"),
    ("compress", "threads, 0 for off"),
    ("auto-converge", "on, off"),
    ("postcopy", "on, off"),
    ("memory", "MiB"),
    ("smp", "vCPUs"),
    ("machine", "q35, pc, microvm"),
    ("pcie-root-ports", "number"),
];

/// Everything that one migration is made with.
#[derive(Debug, Clone, PartialEq)]
pub struct Knobs {
    /// Rate at which the guest dirties, bytes/s.
    pub dirty_bytes_per_s: f64,
    /// Working set, bytes; half of the memory if none.
    pub working_set: Option<u64>,
    /// Memory with data in it, bytes; all if none.
    pub resident: Option<u64>,
    /// Bytes written of each page.
    pub written_bytes: u64,
    /// Limit, bytes/s; 0 for none; QEMU's own if none is set.
    pub bandwidth: Option<u64>,
    /// Limit, ms; QEMU's own if none is set.
    pub downtime_limit_ms: Option<u64>,
    /// XBZRLE's cache, bytes; off at 0.
    pub xbzrle: u64,
    /// Channels; off at 0.
    pub multifd: u64,
    /// How channels compress.
    pub multifd_compression: Option<String>,
    /// Threads; off at 0.
    pub compress: u64,
    /// Throttle the guest until it converges.
    pub auto_converge: bool,
    /// Switch over after the first round, memory following.
    pub postcopy: bool,
    /// The machine.
    pub spec: MachineSpec,
}

impl Knobs {
    /// What QEMU and this program do unless told.
    pub fn new(spec: MachineSpec) -> Self {
        Self {
            dirty_bytes_per_s: 0.0,
            working_set: None,
            resident: None,
            written_bytes: PAGE,
            bandwidth: None,
            downtime_limit_ms: None,
            xbzrle: 0,
            multifd: 0,
            multifd_compression: None,
            compress: 0,
            auto_converge: false,
            postcopy: false,
            spec,
        }
    }

    /// Memory, MiB.
    pub fn memory_mib(&self) -> u32 {
        self.spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB)
    }

    /// Sets one by its name.
    ///
    /// # Errors
    /// No such name, or a value that it does not take.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), MigrateError> {
        let wrong =
            |expected: &str| MigrateError::Usage(format!("{name}={value}: expected {expected}"));
        let number = || value.parse::<u64>().map_err(|_| wrong("a whole number"));
        let small = || value.parse::<u32>().map_err(|_| wrong("a whole number"));
        let megabytes = || {
            let rate = value.parse::<f64>().ok().filter(|rate| (0.0..=1e6).contains(rate));
            rate.map(|rate| rate * 1e6).ok_or_else(|| wrong("MB/s, such as 50"))
        };
        let mebibytes = || {
            let size = number()?.checked_mul(1 << 20);
            size.ok_or_else(|| wrong("a number of MiB"))
        };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong("on or off")),
        };
        match name {
            "dirty-rate" => self.dirty_bytes_per_s = megabytes()?,
            "working-set" => self.working_set = Some(mebibytes()?),
            "resident" => self.resident = Some(mebibytes()?),
            "written-bytes" => match number()? {
                bytes @ 8..=PAGE if bytes % 8 == 0 => self.written_bytes = bytes,
                _ => return Err(wrong("a multiple of 8 up to 4096")),
            },
            "bandwidth" => self.bandwidth = Some(megabytes()? as u64),
            "downtime-limit" => match number()? {
                // QEMU: MAX_MIGRATE_DOWNTIME_SECONDS.
                ms @ 0..=2_000_000 => self.downtime_limit_ms = Some(ms),
                _ => return Err(wrong("ms up to 2000000")),
            },
            "xbzrle" => {
                self.xbzrle = match value {
                    "off" => 0,
                    "on" => XBZRLE_MIB << 20,
                    _ => mebibytes().map_err(|_| wrong("on, off, or MiB"))?,
                }
            }
            "multifd" => match number()? {
                channels @ 0..=255 => self.multifd = channels,
                _ => return Err(wrong("up to 255 channels")),
            },
            "multifd-compression" => self.multifd_compression = Some(value.to_owned()),
            "compress" => match number()? {
                threads @ 0..=255 => self.compress = threads,
                _ => return Err(wrong("up to 255 threads")),
            },
            "auto-converge" => self.auto_converge = switch()?,
            "postcopy" => self.postcopy = switch()?,
            "memory" => self.spec.memory_mib = Some(small()?),
            "smp" => self.spec.smp = Some(small()?),
            "machine" => self.spec.machine = Some(value.to_owned()),
            "pcie-root-ports" => self.spec.pcie_root_ports = Some(small()?),
            _ => {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                return Err(MigrateError::Usage(format!(
                    "{name:?} is not a parameter of a migration; expected one of {names}"
                )));
            }
        }
        Ok(())
    }

    /// What the guest is to do.
    ///
    /// # Errors
    /// Sizes that do not go into each other.
    pub fn workload(&self) -> Result<MigrateWorkload, MigrateError> {
        let mib = self.memory_mib();
        if !(16..=MAX_MEMORY_MIB).contains(&mib) {
            return Err(MigrateError::Usage(format!(
                "--memory {mib}: expected 16 to {MAX_MEMORY_MIB} MiB (QEMU may put part of a \
                larger memory above 4 GiB, where vmeter's guest cannot write)"
            )));
        }
        let room = (u64::from(mib) << 20) - BUFFER;
        let resident_bytes = self.resident.unwrap_or(room);
        let half = (u64::from(mib) << 19).min(resident_bytes);
        let working_set_bytes = self.working_set.unwrap_or(half);
        for (name, bytes) in [("resident", resident_bytes), ("working-set", working_set_bytes)] {
            if bytes == 0 || bytes > room {
                let most = room >> 20;
                return Err(MigrateError::Usage(format!(
                    "{name}={}: expected 1 to {most} MiB (the guest has {mib} MiB of memory)",
                    bytes >> 20
                )));
            }
        }
        if working_set_bytes > resident_bytes {
            return Err(MigrateError::Usage(format!(
                "working-set={}: expected at most {} MiB, the value of resident",
                working_set_bytes >> 20,
                resident_bytes >> 20
            )));
        }
        Ok(MigrateWorkload {
            dirty_bytes_per_s: self.dirty_bytes_per_s,
            working_set_bytes,
            resident_bytes,
            written_bytes: self.written_bytes,
        })
    }

    /// QEMU's capabilities, all that matter on or off.
    pub fn capabilities(&self) -> Vec<(&'static str, bool)> {
        let mut set = vec![("events", true)];
        // One that this QEMU does not have must not be named, even to switch it off.
        let wanted = [
            ("xbzrle", self.xbzrle > 0),
            ("multifd", self.multifd > 0),
            ("compress", self.compress > 0),
            ("auto-converge", self.auto_converge),
            ("postcopy-ram", self.postcopy),
        ];
        set.extend(wanted.into_iter().filter(|(_, on)| *on));
        set
    }

    /// QEMU's parameters that are not its own defaults.
    pub fn parameters(&self) -> Map<String, Value> {
        let mut set = Map::new();
        let mut add = |name: &str, value: Value| {
            set.insert(name.to_owned(), value);
        };
        if let Some(bytes) = self.bandwidth {
            // 0 would be QEMU's word for no limit only from 7.1 on.
            let most = i64::MAX as u64;
            add("max-bandwidth", json!(if bytes == 0 { most } else { bytes }));
        }
        if let Some(ms) = self.downtime_limit_ms {
            add("downtime-limit", json!(ms));
        }
        if self.xbzrle > 0 {
            add(
                "xbzrle-cache-size",
                json!(self.xbzrle.checked_next_power_of_two().unwrap_or(self.xbzrle)),
            );
        }
        if self.multifd > 0 {
            add("multifd-channels", json!(self.multifd));
            if let Some(method) = &self.multifd_compression {
                add("multifd-compression", json!(method));
            }
        }
        if self.compress > 0 {
            add("compress-threads", json!(self.compress));
            add("decompress-threads", json!(self.compress));
        }
        set
    }
}

/// One setting of the sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// What was varied or set, as given.
    pub parameters: Settings,
    /// All of it.
    pub knobs: Knobs,
}

impl Point {
    /// That of a session's machine.
    ///
    /// # Errors
    /// Class usage: settings that no migration can be made with.
    pub fn of(machine: &SessionMachine) -> anyhow::Result<Self> {
        let base = Knobs::new(machine.spec.clone());
        point(&base, &Vec::new(), machine.parameters.clone()).map_err(MigrateError::classified)
    }

    /// Its parameters in one line.
    pub fn label(&self) -> String {
        let words = self.parameters.iter().map(|(name, value)| format!("{name}={value}"));
        words.collect::<Vec<_>>().join(",")
    }
}

/// Every combination of the values, applied to `base`; the first parameter varies slowest.
///
/// # Errors
/// As [`Knobs::set`] and [`Knobs::workload`]; a name twice; too many points.
pub fn points(
    base: &Knobs,
    fixed: &Settings,
    swept: &[(String, Vec<String>)],
) -> Result<Vec<Point>, MigrateError> {
    for (n, (name, values)) in swept.iter().enumerate() {
        if swept[..n].iter().any(|(other, _)| other == name) {
            return Err(MigrateError::Usage(format!("the parameter {name:?} is varied twice")));
        }
        if let Some((_, value)) = values.iter().enumerate().find(|(n, v)| values[..*n].contains(v))
        {
            return Err(MigrateError::Usage(format!("{name}: the value {value:?} is there twice")));
        }
    }
    let count = swept.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
    if count.is_none_or(|count| count == 0 || count > MAX_POINTS) {
        let message = format!(
            "expected 1 to {MAX_POINTS} points; vary fewer parameters or \
            values at a time"
        );
        return Err(MigrateError::Usage(message));
    }
    let mut all: Vec<Settings> = vec![Vec::new()];
    for (name, values) in swept {
        all = all
            .iter()
            .flat_map(|settings| {
                values.iter().map(|value| {
                    let mut settings = settings.clone();
                    settings.push((name.clone(), value.clone()));
                    settings
                })
            })
            .collect();
    }
    all.into_iter().map(|settings| point(base, fixed, settings)).collect()
}

fn point(base: &Knobs, fixed: &Settings, varied: Settings) -> Result<Point, MigrateError> {
    let mut knobs = base.clone();
    let mut parameters = varied;
    let also = fixed.iter().filter(|(name, _)| !parameters.iter().any(|(n, _)| n == name));
    let also: Settings = also.cloned().collect();
    parameters.extend(also);
    for (name, value) in &parameters {
        knobs.set(name, value)?;
    }
    knobs.workload()?;
    Ok(Point { parameters, knobs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base() -> Knobs {
        Knobs::new(MachineSpec::default())
    }

    #[test]
    fn values_and_what_is_wrong_with_them() {
        let mut knobs = base();
        for (name, value) in [
            ("dirty-rate", "12.5"),
            ("bandwidth", "0"),
            ("xbzrle", "on"),
            ("multifd", "2"),
            ("postcopy", "on"),
            ("written-bytes", "64"),
        ] {
            knobs.set(name, value).expect(name);
        }
        assert_eq!(knobs.dirty_bytes_per_s, 12.5e6);
        assert_eq!(knobs.parameters()["max-bandwidth"], i64::MAX);
        assert_eq!(knobs.parameters()["xbzrle-cache-size"], 64 << 20);
        assert_eq!(knobs.capabilities().len(), 4);
        for (name, value) in [
            ("dirty-rate", "-1"),
            ("dirty-rate", "NaN"),
            ("written-bytes", "12"),
            ("auto-converge", "yes"),
            ("downtime-limit", "9999999"),
            ("speed", "1"),
        ] {
            let error = knobs.set(name, value).expect_err(name).to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn sizes_go_into_each_other() {
        let mut knobs = base();
        let workload = knobs.workload().expect("the default");
        assert_eq!(workload.resident_bytes, 254 << 20);
        assert_eq!(workload.working_set_bytes, 128 << 20);
        knobs.set("working-set", "255").expect("a number");
        assert!(knobs.workload().is_err());
        knobs.set("working-set", "64").expect("a number");
        knobs.set("resident", "32").expect("a number");
        assert!(knobs.workload().is_err());
        knobs.set("memory", "8").expect("a number");
        assert!(knobs.workload().is_err());
    }

    #[test]
    fn combinations_in_order() {
        let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let swept = vec![
            ("dirty-rate".to_owned(), list(&["0", "50"])),
            ("xbzrle".to_owned(), list(&["off", "on"])),
        ];
        let fixed = vec![("bandwidth".to_owned(), "100".to_owned())];
        let all = points(&base(), &fixed, &swept).expect("points");
        let labels: Vec<String> = all.iter().map(Point::label).collect();
        assert_eq!(labels[1], "dirty-rate=0,xbzrle=on,bandwidth=100");
        assert_eq!(all[3].knobs.dirty_bytes_per_s, 50e6);
        let twice = vec![swept[0].clone(), swept[0].clone()];
        assert!(points(&base(), &fixed, &twice).is_err());
        assert!(points(&base(), &fixed, &[("xbzrle".into(), vec![])]).is_err());
    }

    proptest! {
        #[test]
        fn any_value(name in 0..NAMES.len(), value in "\\PC{0,24}") {
            let mut knobs = base();
            if knobs.set(NAMES[name].0, &value).is_ok() {
                let _ = knobs.workload();
            }
        }
    }
}
