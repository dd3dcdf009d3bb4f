//! The monitor's commands that migrate.
//!
//! The answers are read leniently: each version of QEMU adds fields, and takes some away,
//! so what is absent is 0. (QEMU's own schema makes many of them mandatory.)

use crate::error::MigrateError;
use crate::vm::Vm;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use vmeter_machine::{qmp::QmpError, qmp_commands};

qmp_commands! {
    /// How far it is.
    pub QueryMigrate = "query-migrate" -> MigrationInfo {}
    /// Sets parameters.
    pub SetParameters = "migrate-set-parameters" -> Value {
        /// Name and value.
        #[serde(flatten)]
        parameters: Map<String, Value>
    }
    /// The parameters in effect.
    pub QueryParameters = "query-migrate-parameters" -> Parameters {}
    /// Switches capabilities.
    pub SetCapabilities = "migrate-set-capabilities" -> Value {
        /// Each `{"capability", "state"}`.
        capabilities: Vec<Value>
    }
    /// Listens.
    pub MigrateIncoming = "migrate-incoming" -> Value {
        /// `unix:PATH`.
        uri: String
    }
    /// Begins.
    pub Migrate = "migrate" -> Value {
        /// `unix:PATH`.
        uri: String
    }
    /// Gives up.
    pub Cancel = "migrate_cancel" -> Value {}
    /// Runs the guest at the destination; the rest of its memory follows.
    pub StartPostcopy = "migrate-start-postcopy" -> Value {}
    /// Runs the guest.
    pub Cont = "cont" -> Value {}
    /// The guest's memory.
    pub MemorySize = "query-memory-size-summary" -> MemorySummary {}
    /// A command of the human monitor.
    pub Human = "human-monitor-command" -> String {
        /// As it would be typed.
        command_line: String
    }
}

/// Answer of `query-memory-size-summary`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemorySummary {
    /// Bytes that the machine began with.
    pub base_memory: u64,
}

/// Answer of `query-migrate`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct MigrationInfo {
    /// `active`, `completed`, `failed`, …; empty before a migration.
    pub status: String,
    /// Since it began, ms.
    pub total_time: u64,
    /// From stop to start, ms.
    pub downtime: u64,
    /// Before the first page, ms.
    pub setup_time: u64,
    /// Auto-converge, %.
    pub cpu_throttle_percentage: u64,
    /// Why it failed.
    pub error_desc: Option<String>,
    /// Memory.
    pub ram: RamInfo,
}

/// Part of [`MigrationInfo`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct RamInfo {
    /// Sent, bytes.
    pub transferred: u64,
    /// Left to send, bytes.
    pub remaining: u64,
    /// The guest's memory, bytes.
    pub total: u64,
    /// Rounds begun.
    pub dirty_sync_count: u64,
    /// Sent while the guest stood still, bytes (from QEMU 7.0 on).
    pub downtime_bytes: u64,
}

/// Answer of `query-migrate-parameters`, as far as it matters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Parameters {
    /// Bytes/s.
    pub max_bandwidth: u64,
    /// ms.
    pub downtime_limit: u64,
    /// %.
    pub max_cpu_throttle: u64,
}

impl MigrationInfo {
    /// True once nothing more will happen.
    pub fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled" | "postcopy-paused")
    }
}

/// Where in the monitor's process the guest-physical address 0 is (HMP `gpa2hva`).
///
/// # Errors
/// When QEMU does not say it.
pub fn ram_address(vm: &mut Vm) -> Result<u64, MigrateError> {
    // The first MiB has holes; RAM is in one piece from 1 MiB on in every PC.
    const AT: u64 = 1 << 20;
    let answer = vm.execute(&Human { command_line: format!("gpa2hva {AT:#x}") })?;
    let address = answer.split_whitespace().last().and_then(|word| word.strip_prefix("0x"));
    address
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .and_then(|address| address.checked_sub(AT))
        .ok_or_else(|| {
            let words: String = answer.chars().filter(|c| !c.is_control()).take(200).collect();
            MigrateError::Host(format!("the {}'s RAM cannot be found: {words}", vm.side))
        })
}

/// Sets capabilities and parameters; a value that QEMU does not know is its own words.
///
/// # Errors
/// What QEMU refuses.
pub fn set(
    vm: &mut Vm,
    capabilities: &[(&str, bool)],
    parameters: &Map<String, Value>,
) -> Result<(), MigrateError> {
    let capabilities: Vec<Value> = capabilities
        .iter()
        .map(|(name, state)| json!({ "capability": name, "state": state }))
        .collect();
    vm.execute(&SetCapabilities { capabilities })?;
    if !parameters.is_empty() {
        vm.execute(&SetParameters { parameters: parameters.clone() })?;
    }
    Ok(())
}

/// QEMU's words where it refused something; none for any other error.
pub fn refusal(error: &MigrateError) -> Option<String> {
    match error {
        MigrateError::Qmp { side, error: QmpError::Refused { command, message } } => {
            Some(format!("the {side}'s QEMU refused {command}: {message}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers_of_other_versions_are_read() {
        let info: MigrationInfo = serde_json::from_str("{}").unwrap();
        assert!(!info.is_over() && info.ram.total == 0);
        let info: MigrationInfo = serde_json::from_str(
            r#"{"status": "completed", "downtime": 12, "ram": {"transferred": 7, "new": [1]}}"#,
        )
        .unwrap();
        assert!(info.is_over() && info.downtime == 12 && info.ram.transferred == 7);
    }

    proptest! {
        #[test]
        fn any_answer(text in "\\PC{0,200}") {
            let _ = serde_json::from_str::<MigrationInfo>(&text);
        }
    }
}
