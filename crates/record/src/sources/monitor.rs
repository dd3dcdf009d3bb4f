//! What QEMU's monitor says of the machine's end.
//!
//! `SHUTDOWN` names who ended the machine (`ShutdownCause` of QEMU's qapi/run-state.json,
//! since 4.0), which its exit status does not: a guest that powers off, one that resets
//! itself and one that crashes all end in status 0 under `-no-reboot`. Nobody talks to the
//! monitor while the guest runs: the one command that it needs waits in its socket before
//! QEMU is there, and what it said is read once QEMU is gone. So that unwatched boots, too,
//! have it. `RESET` says when a guest had the machine reset that goes on.

use super::read_bounded;
use crate::clock::Conversion;
use crate::end::EndEvidence;
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::qmp;
use vmeter_model::run::{Origin, SourceRecord};
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "monitor";

const FILE: &str = "monitor.qmp";

/// More than a monitor says in any boot.
const MAX_SAID: u64 = 1 << 20;

/// QEMU's monitor, which is listened to.
pub struct Monitor;

impl Recorder for Monitor {
    type Parameters = NoParameters;
    type Raw = Vec<Value>;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        context.vmm.monitor.then(|| {
            let dir = context.dir.to_owned();
            let commands = context.snapshot.map_or(&[][..], |snapshot| &snapshot.commands);
            let words =
                commands.iter().fold(SPEAK.to_owned(), |words, command| words + command + "\n");
            Box::new(Recording { dir, words, socket: None, awaited: None }) as _
        })
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Vec<Value>, SourceError> {
        let bytes = read_bounded(dir, source, 0)?;
        let lines = bytes.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    fn decode(
        &self,
        said: &Vec<Value>,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        // QEMU's own trace has the other moments; this has their reasons.
        let Some(clock) = Conversion::from_realtime(&saved.run.clocks) else {
            return Ok(Vec::new());
        };
        let event = |micros: f64, what: EventKind| Event {
            at: clock.to_monotonic(micros * 1e3).saturating_sub(saved.run.exec_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what,
        };
        let restored = saved.run.origin == Origin::Restore;
        let what = |message: &Value| match message.get("event").and_then(Value::as_str) {
            Some("RESUME") if restored => Some(EventKind::RunState { state: "running".into() }),
            _ => is_reset_by_guest(message).then_some(EventKind::MachineReset),
        };
        let told = said.iter().filter_map(|message| Some(event(wall_us(message)?, what(message)?)));
        Ok(told.collect())
    }

    fn clues(&self, said: &Vec<Value>, clues: &mut EndEvidence) {
        for message in said {
            match message.get("event").and_then(Value::as_str) {
                Some("SHUTDOWN") => {
                    let reason = message.pointer("/data/reason").and_then(Value::as_str);
                    clues.shutdown = reason.map(str::to_owned);
                }
                Some("GUEST_PANICKED" | "GUEST_CRASHLOADED") => clues.told_of_panic = true,
                Some("RESET") => clues.resets += 1,
                Some("STOP") => clues.paused = true,
                Some("RESUME") => clues.paused = false,
                _ => {}
            }
        }
    }
}

/// True if the guest itself had the machine reset.
fn is_reset_by_guest(message: &Value) -> bool {
    let by_guest = message.pointer("/data/guest").and_then(Value::as_bool);
    message.get("event").and_then(Value::as_str) == Some("RESET") && by_guest == Some(true)
}

/// When an event was, µs since the epoch.
fn wall_us(message: &Value) -> Option<f64> {
    let part = |name: &str| message.get("timestamp")?.get(name)?.as_i64();
    let (seconds, micros) = (part("seconds")?, part("microseconds")?);
    (seconds >= 0 && (0..1_000_000).contains(&micros))
        .then_some(seconds as f64 * 1e6 + micros as f64)
}

struct Recording {
    dir: PathBuf,
    /// What it is told before anything else.
    words: String,
    socket: Option<UnixStream>,
    /// Where QEMU connects to, and the thread that waits for it.
    awaited: Option<(PathBuf, JoinHandle<std::io::Result<UnixStream>>)>,
}

/// Without this it says nothing of what happens.
const SPEAK: &str = "{\"execute\": \"qmp_capabilities\"}\n";

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let failed = |error: std::io::Error| SourceError::Other(format!("{NAME}: {error}"));
        if let Some(path) = plan.by_path.as_ref().map(|folder| folder.join("monitor")) {
            if let Some(listener) = qmp::add_by_path(plan, &path).map_err(failed)? {
                let words = self.words.clone();
                let greet = move || {
                    let (mut socket, _) = listener.accept()?;
                    // One that is gone already has said all.
                    let _ = socket.write_all(words.as_bytes());
                    Ok(socket)
                };
                self.awaited = Some((path, std::thread::spawn(greet)));
            }
            return Ok(());
        }
        if plan.only_words {
            return Ok(());
        }
        let Some(mut socket) = qmp::add(plan).map_err(failed)? else { return Ok(()) };
        socket.write_all(self.words.as_bytes()).map_err(failed)?;
        self.socket = Some(socket);
        Ok(())
    }

    fn finish(mut self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        if let Some((path, thread)) = self.awaited.take() {
            // Where QEMU never connected, this is who is waited for.
            drop(UnixStream::connect(path));
            self.socket = thread.join().ok().and_then(Result::ok);
        }
        let Some(socket) = self.socket else { return Ok(None) };
        let path = self.dir.join(FILE);
        let io = |error| SourceError::Io { path: path.clone(), error };
        // A descendant of QEMU may hold its end for ever; all that was said is here already.
        socket.set_nonblocking(true).map_err(io)?;
        let mut said = Vec::new();
        match socket.take(MAX_SAID).read_to_end(&mut said) {
            // A QEMU that never spoke to it says why on its standard error.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock && said.is_empty() => {
                return Err(io(error));
            }
            _ => {}
        }
        if said.is_empty() {
            return Ok(None);
        }
        std::fs::write(&path, &said).map_err(io)?;
        let clock = "wall clock, which QEMU puts into each message";
        Ok(Some(recorder::record::<Monitor>(&[FILE], clock, 1_000, &NoParameters {})))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_shutdown_counts_and_resets_are_counted() {
        let said = [
            r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#,
            r#"{"return": {}}"#,
            r#"{"timestamp": {"seconds": 7, "microseconds": 250000}, "event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#,
            r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#,
        ];
        let said: Vec<Value> =
            said.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let mut clues = EndEvidence::default();
        Recorder::clues(&Monitor, &said, &mut clues);
        assert_eq!((clues.shutdown.as_deref(), clues.resets), (Some("guest-reset"), 1));
        assert!(!clues.told_of_panic && !clues.paused);
        let by_guest: Vec<&Value> = said.iter().filter(|m| is_reset_by_guest(m)).collect();
        assert_eq!(by_guest.len(), 1);
        assert_eq!(wall_us(by_guest[0]), Some(7_250_000.0));
        let own =
            r#"{"event": "RESET", "data": {"guest": false, "reason": "host-qmp-system-reset"}}"#;
        let own = serde_json::from_str(own).expect("JSON");
        assert!(!is_reset_by_guest(&own) && wall_us(&own).is_none());
    }
}
