//! What the guest's systemd was told of the order of its units, out of its page cache.
//!
//! Lines say when a unit was started and when it was up, not which other it waited for: that
//! is in its file (`After=`, and what systemd adds to it by itself: systemd.unit(5), "Implicit
//! dependencies" and "Default dependencies" of each kind of unit). systemd has read these
//! files, so that the guest's kernel has them in RAM when it is over. Of each only the lines
//! are kept that say something of the order.

use super::read_bounded;
use crate::guest_ram::GuestKernel;
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_kernel_image::cached_files::{cached_files, CachedFile};
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, EventKind, Ns, UnitFile};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-units";

const FILE: &str = "guest-units.json";

/// Kinds of unit that take part in a boot.
const KINDS: &[&str] =
    &[".service", ".target", ".mount", ".automount", ".socket", ".path", ".timer", ".swap"];
/// The lines that say something of the order.
const KEYS: &[&str] = &[
    "After=",
    "Before=",
    "Description=",
    "DefaultDependencies=",
    "Wants=",
    "Requires=",
    "PrivateTmp=",
    "WantedBy=",
    "RequiredBy=",
];
/// What every unit's file holds.
const UNIT: &[u8] = b"[Unit]";
/// Longest line kept, bytes.
const MAX_LINE: usize = 4096;
/// What waits for temporary files to be there.
const TMPFILES: &str = "systemd-tmpfiles-setup.service";

/// The guest's unit files.
pub struct GuestUnits;

/// A unit's file, or a link to it among those that another wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedUnitFile {
    /// Its path in its file system; none where its name is not known any more.
    path: Option<String>,
    /// Its lines that are in [`KEYS`].
    lines: Vec<String>,
}

impl Recorder for GuestUnits {
    type Parameters = NoParameters;
    type Raw = Vec<SavedUnitFile>;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let kernel = GuestKernel::of(context).filter(|_| !context.own_init)?;
        Some(Box::new(Recording { kernel, dir: context.dir.to_owned(), kept: Vec::new() }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Vec<SavedUnitFile>, SourceError> {
        let bytes = read_bounded(dir, source, 0)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| SourceError::Other(format!("{NAME}: {FILE} can't be read: {error}")))
    }

    fn decode(
        &self,
        kept: &Vec<SavedUnitFile>,
        _: &SourceRecord,
        _: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        // They were there throughout.
        let event = |file| Event {
            at: 0,
            error_ns: 0,
            source: NAME.into(),
            insns: None,
            what: EventKind::UnitFile { file },
        };
        Ok(units(kept).into_iter().map(event).collect())
    }
}

struct Recording {
    kernel: GuestKernel,
    dir: PathBuf,
    kept: Vec<SavedUnitFile>,
}

impl Live for Recording {
    fn prepare(&mut self, _plan: &mut LaunchPlan) -> Result<(), SourceError> {
        self.kernel.open()
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        // A kernel without types, or none at all, tells nothing of the order: no fault of the run.
        let found = self.kernel.look_into(tracee, |guest| cached_files(guest, UNIT, is_unit));
        self.kept = found.unwrap_or_default().into_iter().filter_map(keep).collect();
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        if self.kept.is_empty() {
            return Ok(None);
        }
        let bytes = serde_json::to_vec(&self.kept)
            .map_err(|error| SourceError::Other(format!("{NAME}: {error}")))?;
        let path = self.dir.join(FILE);
        std::fs::write(&path, bytes).map_err(|error| SourceError::Io { path, error })?;
        Ok(Some(recorder::record::<GuestUnits>(&[FILE], "none: files", 0, &NoParameters {})))
    }
}

/// True for a unit's file, a drop-in, or a link among what another unit wants.
fn is_unit(folder: &str, name: &str) -> bool {
    let unit = |name: &str| KINDS.iter().any(|kind| name.ends_with(kind));
    let of_systemd = matches!(folder, "system" | "transient") || folder.starts_with("generator");
    let linked = folder.rsplit_once('.').is_some_and(|(of, kind)| {
        unit(of) && (matches!(kind, "wants" | "requires") || kind == "d")
    });
    (unit(name) && (of_systemd || linked)) || (linked && name.ends_with(".conf"))
}

/// What is kept of a file.
fn keep(file: CachedFile) -> Option<SavedUnitFile> {
    let CachedFile { path, content } = file;
    let named = |path: &String| {
        let (folder, name) = path.rsplit_once('/').unwrap_or_default();
        let folder = folder.rsplit('/').next().unwrap_or_default();
        path.contains("/systemd/") && is_unit(folder, name)
    };
    if path.as_ref().is_some_and(|path| !named(path)) {
        return None;
    }
    let text = String::from_utf8_lossy(content.as_deref().unwrap_or_default()).into_owned();
    // A line that ends in a backslash goes on in the next one.
    let text = text.replace("\\\n", " ");
    let known = |line: &&str| KEYS.iter().any(|key| line.starts_with(key));
    let lines = text.lines().map(str::trim).filter(known).filter(|line| line.len() <= MAX_LINE);
    Some(SavedUnitFile { path, lines: lines.map(str::to_owned).collect() })
}

/// Who overrides whom (systemd.unit(5), "Unit File Load Path"); paths below `/run` are those
/// of its own file system.
fn rank(path: &str) -> u8 {
    match path {
        _ if path.starts_with("/etc/") => 3,
        _ if path.starts_with("/systemd/") || path.starts_with("/run/") => 2,
        _ => 1,
    }
}

/// Units: by name, and those whose name is not known.
fn units(kept: &[SavedUnitFile]) -> Vec<UnitFile> {
    let of_path = |file: &SavedUnitFile| file.path.as_deref().map_or(0, rank);
    let mut sorted: Vec<&SavedUnitFile> = kept.iter().collect();
    sorted.sort_by_key(|file| of_path(file));
    let mut units: BTreeMap<&str, UnitFile> = BTreeMap::new();
    let mut nameless = Vec::new();
    for file in &sorted {
        let mut unit = UnitFile { default: true, ..UnitFile::default() };
        add(&mut unit, &file.lines);
        match file.path.as_deref().map(place) {
            Some(Some((_, name, None))) => {
                unit.name = name.to_owned();
                units.insert(name, unit);
            }
            Some(_) => {}
            None => nameless.push(unit),
        }
    }
    for file in &sorted {
        let place = file.path.as_deref().and_then(place);
        let Some((_, name, Some((of, kind)))) = place else { continue };
        let Some(unit) = units.get_mut(of) else { continue };
        match kind {
            "d" => add(unit, &file.lines),
            _ => unit.pulls.push(name.to_owned()),
        }
    }
    units.into_values().chain(nameless).collect()
}

/// A folder, a name, and of which unit and how it is a part.
type Place<'a> = (&'a str, &'a str, Option<(&'a str, &'a str)>);

/// A path's place.
fn place(path: &str) -> Option<Place<'_>> {
    let (folder, name) = path.rsplit_once('/')?;
    let folder = folder.rsplit('/').next()?;
    let part = folder.rsplit_once('.').filter(|(of, kind)| {
        matches!(*kind, "wants" | "requires" | "d") && KINDS.iter().any(|k| of.ends_with(k))
    });
    Some((folder, name, part))
}

/// Adds what lines say.
fn add(unit: &mut UnitFile, lines: &[String]) {
    for line in lines {
        let Some((key, value)) = line.split_once('=') else { continue };
        let words = || value.split_whitespace().map(str::to_owned);
        let yes = || matches!(value.trim(), "yes" | "true" | "on" | "1");
        match key.trim_end() {
            "After" if value.trim().is_empty() => unit.after.clear(),
            "After" => unit.after.extend(words()),
            "Before" => unit.before.extend(words()),
            "Wants" | "Requires" => unit.pulls.extend(words()),
            "WantedBy" | "RequiredBy" => unit.pulled_by.extend(words()),
            "Description" => unit.description = value.trim().to_owned(),
            "DefaultDependencies" => unit.default = yes(),
            "PrivateTmp" if yes() => unit.after.push(TMPFILES.to_owned()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str, text: &str) -> Option<SavedUnitFile> {
        let path = Some(path.to_owned()).filter(|path| !path.is_empty());
        keep(CachedFile { path, content: Some(text.as_bytes().to_vec()) })
    }

    #[test]
    fn files_of_a_unit_are_one_unit() {
        let kept: Vec<SavedUnitFile> = [
            (
                "/usr/lib/systemd/system/a.service",
                "# x\n[Unit]\nDescription=A\nAfter=b.service \\\n c.service\n[Service]\n\
                 Environment=SECRET=1\nPrivateTmp=yes\n",
            ),
            ("/etc/systemd/system/a.service.d/x.conf", "[Unit]\nAfter=d.target\n"),
            ("/usr/lib/systemd/system/d.target", "[Unit]\nDefaultDependencies=no\n"),
            ("/etc/systemd/system/d.target.wants/a.service", ""),
            ("/usr/share/doc/system/a.service", "[Unit]\n"),
            ("", "[Unit]\nDescription=N\n[Install]\nWantedBy=d.target\n"),
        ]
        .into_iter()
        .filter_map(|(path, text)| file(path, text))
        .collect();
        assert_eq!(kept.len(), 5);
        assert!(!serde_json::to_string(&kept).unwrap().contains("SECRET"));
        let [a, d, nameless] = units(&kept).try_into().expect("three units");
        assert_eq!(a.after, ["b.service", "c.service", TMPFILES, "d.target"]);
        assert_eq!((a.description.as_str(), a.default), ("A", true));
        assert_eq!((d.pulls.as_slice(), d.default), (&["a.service".to_owned()][..], false));
        assert_eq!((nameless.name.as_str(), nameless.description.as_str()), ("", "N"));
        assert_eq!(nameless.pulled_by, ["d.target"]);
    }

    #[test]
    fn only_units_are_wanted() {
        assert!(is_unit("system", "ssh.service") && is_unit("generator", "-.mount"));
        assert!(is_unit("ssh.service.d", "x.conf"));
        assert!(is_unit("multi-user.target.wants", "ssh.service"));
        // A control group, a library.
        assert!(!is_unit("system.slice", "ssh.service") && !is_unit("system", "libc.so.6"));
    }

    proptest! {
        #[test]
        fn no_files_panic(path in "(/etc|/usr/lib)?/systemd/[a-z./]{0,20}", text in "\\PC{0,60}") {
            let kept: Vec<SavedUnitFile> = file(&path, &format!("[Unit]\n{text}")).into_iter().collect();
            let _ = units(&kept);
            let _ = place(&path);
        }
    }
}
