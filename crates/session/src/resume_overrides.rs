//! Options that are given beside `--resume`.
//!
//! A session goes on as it was begun, so it needs no option again; one that is given all the
//! same and says something else is refused, not ignored.

use crate::changed;
use crate::dirs::goes_on;
use crate::failure::usage;
use crate::folder::check_new;
use crate::options::{pinned, RunOptions};
use crate::progress::Watch;
use crate::saved_in::saved_in;
use crate::store::{AnySession, Away, Session};
use crate::trust;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use vmeter_base::{files, shell};
use vmeter_model::run::{AskedGate, Planned, SessionRecord};

/// The session of `kind` that the options go on with, if they go on with one; `own` notes what
/// else the command line says, and what the session was begun with.
///
/// # Errors
/// Class usage: a folder that holds none, or one of another kind; options that say something
/// else than it was begun with; a file of its machines that has changed; `own`'s; a folder that this user's vmeter did not make, unless
/// the user trusts it. Where a session begins: CPUs or a folder to save in that it can't have.
pub fn resumed<P: Planned>(
    kind: &str,
    options: &RunOptions,
    watch: &mut Watch<'_>,
    own: impl FnOnce(&Session<P>, &mut ResumeOverrides) -> Result<()>,
) -> Result<Option<Session<P>>> {
    let Some(dir) = &options.resume else {
        // Before anything is made for it.
        pinned(options.pin.as_deref())?;
        options.save.as_deref().map_or(Ok(()), check_new)?;
        return Ok(None);
    };
    let command = AnySession::open(dir)?.record.command;
    if !goes_on(&command) {
        return Err(usage(format!(
            "{} is a session of VMs that another program started, so vmeter cannot resume it; \
             `vmeter show {}` shows this session",
            dir.display(),
            shell::path(dir)
        )));
    }
    if command != kind {
        return Err(usage(format!(
            "{} is a session of vmeter {command}: resume it with `vmeter {command} --resume {}`",
            dir.display(),
            shell::path(dir)
        )));
    }
    // Another vmeter may have added to it until it was held.
    let mut session = Session::<P>::open(dir)?;
    session.hold()?;
    session.record = Session::open(&session.dir)?.record;
    let mut given = ResumeOverrides::of(options, &session.record);
    own(&session, &mut given)?;
    given.check(&session.dir)?;
    trust::check(&session.dir, options.trust, watch)?;
    session.is_ours();
    enter(&mut session)?;
    let anew = changed::check(&session)?;
    session.record.programs.extend(anew);
    files::remove_begun(&session.dir);
    let dir = session.dir.clone();
    watch.interrupt.says_at_the_end(move || saved_in(&dir));
    Ok(Some(session))
}

/// Goes where the session was begun: relative paths and commands of its machines mean what they
/// meant there. One that was, and of which nothing depends on it, need not be there any more.
fn enter<P>(session: &mut Session<P>) -> Result<()> {
    let Some(begun) = session.record.working_dir.clone() else { return Ok(()) };
    if std::env::current_dir().is_ok_and(|now| now == begun) {
        return Ok(());
    }
    session.dir = std::path::absolute(&session.dir).context("cannot find the working folder")?;
    match Away::to(&begun) {
        Err(error) if depends(&session.record) => Err(usage(format!(
            "the session {} was begun in the folder {}, and the session's commands and relative \
             paths refer to this folder. vmeter cannot enter this folder: {error}. Make the \
             folder again, or start a new session without --resume",
            session.dir.display(),
            begun.display()
        ))),
        went => {
            session.away = went.ok();
            Ok(())
        }
    }
}

/// True if anything that is executed or read may depend on the folder.
fn depends<P>(record: &SessionRecord<P>) -> bool {
    let relative = |path: &Path| path.is_relative() && path.components().count() > 1;
    record.prepare.is_some()
        || record.machines.iter().map(|machine| &machine.spec).any(|spec| {
            let files = [&spec.kernel, &spec.symbols, &spec.initrd];
            let named = [&spec.vmm, &spec.machine, &spec.firmware];
            !spec.command.is_empty()
                || files.into_iter().flatten().any(|file| file.is_relative())
                || named.into_iter().flatten().any(|name| relative(Path::new(name)))
        })
}

/// What is given beside `--resume`, held against what the session was begun with.
#[derive(Debug, Default)]
pub struct ResumeOverrides {
    others: Vec<String>,
    /// Of each, what the session was begun with and what was asked.
    values: Vec<String>,
}

impl ResumeOverrides {
    /// The options that the shell itself keeps: order, CPUs, preparation.
    fn of<P>(options: &RunOptions, begun: &SessionRecord<P>) -> Self {
        let mut given = ResumeOverrides::default();
        given.option("--seed", options.seed, begun.seed);
        given.option("--pin", options.pin.as_ref().map(Some), begun.pin.as_ref());
        given.option("--prepare", options.prepare.as_ref().map(Some), begun.prepare.as_ref());
        if let Some(gate) = &begun.gate {
            let AskedGate { fail_if_slower, inconclusive, .. } = &options.gate;
            given.option("--fail-if-slower", fail_if_slower.map(Some), gate.fail_if_slower);
            let asked = inconclusive.as_ref().map(Some);
            given.option("--inconclusive", asked, gate.inconclusive.as_ref());
        }
        given
    }

    /// An option, if it was given, and what the session was begun with.
    pub fn option<T: PartialEq + Serialize>(&mut self, name: &str, given: Option<T>, begun: T) {
        if let Some(given) = given.filter(|given| *given != begun) {
            self.differs(name.to_owned(), &value(&given), &value(&begun));
        }
    }

    /// Machines of a comparison by their labels: the first is described by options of its own, all
    /// others by `option`.
    pub fn machines<M: Serialize>(
        &mut self,
        option: &str,
        given: &[(String, M)],
        begun: &[(String, M)],
    ) {
        if let ([(_, given), ..], [(_, begun), ..]) = (given, begun) {
            self.fields(given, begun);
        }
        if given.len() > 1 {
            let labels = |of: &[(String, M)]| -> Vec<String> {
                of.iter().skip(1).map(|(label, _)| label.clone()).collect()
            };
            self.option(option, Some(labels(given)), labels(begun));
        }
    }

    fn differs(&mut self, name: String, given: &Value, begun: &Value) {
        self.values.push(format!("{name}: begun {}, asked {}", with(begun), word(given)));
        self.others.push(name);
    }

    /// Options by their names in a serialised struct, units aside. Those that are null, false
    /// or empty were not given.
    pub fn fields(&mut self, given: &impl Serialize, begun: &impl Serialize) {
        let (Ok(Value::Object(given)), Ok(begun)) =
            (serde_json::to_value(given), serde_json::to_value(begun))
        else {
            return;
        };
        for (name, value) in given {
            let said = match &value {
                Value::Null | Value::Bool(false) => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(list) => !list.is_empty(),
                Value::Object(map) => !map.is_empty(),
                Value::Bool(true) | Value::Number(_) => true,
            };
            if said && begun.get(&name) != Some(&value) {
                let option = name.trim_end_matches("_mib").trim_end_matches("_s");
                let option = match option {
                    "command" => "command line after --".to_owned(),
                    option => format!("--{}", option.replace('_', "-")),
                };
                self.differs(option, &value, begun.get(&name).unwrap_or(&Value::Null));
            }
        }
    }

    /// Refuses the session in `dir` if anything differs.
    ///
    /// # Errors
    /// Class usage: the options that do.
    fn check(self, dir: &Path) -> Result<()> {
        if self.others.is_empty() {
            return Ok(());
        }
        Err(usage(format!(
            "{} was started with another {}: {}. To resume the session, leave that option out; or \
             start again without --resume",
            dir.display(),
            self.others.join(", "),
            self.values.join("; ")
        )))
    }
}

fn value(option: &impl Serialize) -> Value {
    serde_json::to_value(option).unwrap_or_default()
}

/// A value as it is typed.
fn word(value: &Value) -> String {
    match value {
        Value::Bool(true) => "for it".to_owned(),
        Value::Null | Value::Bool(false) => "for none".to_owned(),
        Value::String(text) => shell::quote(text),
        Value::Array(words) if words.iter().all(Value::is_string) => {
            shell::join(words.iter().filter_map(Value::as_str))
        }
        other => other.to_string(),
    }
}

fn with(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(false) => "without it".to_owned(),
        Value::Bool(true) => "with it".to_owned(),
        Value::Array(words) if words.is_empty() => "without it".to_owned(),
        other => format!("with {}", word(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::PlannedRun;
    use vmeter_model::MachineSpec;

    #[test]
    fn only_what_differs_is_refused_by_its_name() {
        let begun = SessionRecord::<PlannedRun> { seed: 7, ..SessionRecord::default() };
        let spec = MachineSpec { smp: Some(2), ..MachineSpec::default() };
        let check = |options: &RunOptions, given: &MachineSpec| {
            let mut all = ResumeOverrides::of(options, &begun);
            all.fields(given, &spec);
            all.check(Path::new("x")).map_err(|error| error.to_string())
        };
        let none = RunOptions::default();
        assert_eq!(check(&none, &MachineSpec::default()), Ok(()));
        let same = RunOptions { seed: Some(7), ..RunOptions::default() };
        assert_eq!(check(&same, &spec), Ok(()));
        let other =
            RunOptions { seed: Some(8), prepare: Some("sync".into()), ..RunOptions::default() };
        let bigger = MachineSpec { memory_mib: Some(64), no_inject: true, ..spec.clone() };
        let said = check(&other, &bigger).unwrap_err();
        assert!(said.contains("--seed, --prepare, --memory, --no-inject:"), "{said}");
        for both in ["--seed: begun with 7, asked 8", "--prepare: begun without it, asked sync"] {
            assert!(said.contains(both), "{said}");
        }
        let own = MachineSpec { command: vec!["qemu".into()], ..spec.clone() };
        let said = check(&none, &own).unwrap_err();
        assert!(said.contains("another command line after --:"), "{said}");
    }
}
