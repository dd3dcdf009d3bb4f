//! What heads every export.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which command made a result, when, on which host, from what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Version of the export's form, e.g. `vmeter/1`.
    pub schema: String,
    /// `boot`, `bench`, …
    pub command: String,
    /// vmeter's own argument vector.
    pub argv: Vec<String>,
    /// When the session began, RFC 3339 in UTC.
    pub started_at: String,
    /// The host.
    pub host: BTreeMap<String, serde_json::Value>,
    /// `vmeter`, `vmm`, `kernel`, `firmware`, …: versions and digests.
    pub provenance: BTreeMap<String, String>,
}
