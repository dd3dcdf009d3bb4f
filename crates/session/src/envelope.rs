//! What heads every result: who made it, on what, when.

use crate::host;
use std::collections::BTreeMap;
use vmeter_model::result::Envelope;
use vmeter_model::run::SessionRecord;

/// Head of every export of a session.
pub fn envelope<P>(session: &SessionRecord<P>) -> Envelope {
    let mut provenance = BTreeMap::from([("vmeter".to_owned(), version())]);
    if let Some(machine) = session.machines.first() {
        provenance.extend(machine.provenance.clone());
    }
    Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: session.command.clone(),
        argv: session.argv.clone(),
        started_at: session.started_at.clone(),
        host: session.host.clone(),
        provenance,
    }
}

/// Head of the exports of a command that begins now, on this host.
pub fn envelope_now(command: &str) -> Envelope {
    let host = host::describe();
    let mut provenance = BTreeMap::from([("vmeter".to_owned(), version())]);
    if let Some(kernel) = host.get("kernel").and_then(|kernel| kernel.as_str()) {
        provenance.insert("kernel".to_owned(), kernel.to_owned());
    }
    Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: command.to_owned(),
        argv: vmeter_base::argv(),
        started_at: host::now(),
        host,
        provenance,
    }
}

/// This vmeter's version.
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
