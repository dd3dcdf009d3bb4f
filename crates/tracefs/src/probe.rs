//! A kprobe of one's own, seen by an instance of one's own alone, as text.
//!
//! `kprobe_events` is one list for the whole host (Documentation/trace/kprobetrace.rst), so
//! a line is added to it and taken out again, and the rest left alone. The probe's group has the
//! instance's name, so that whoever removes the one knows the other.

use crate::instance::{own_threads, register, Made};
use crate::{Error, Tracefs};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use vmeter_base::owner::Owner;

const LIST: &str = "kprobe_events";
const EVENT: &str = "seen";
/// The ring buffer of each CPU, KiB: a probe is for what happens seldom.
const BUFFER_KIB: &str = "64";
/// More than such a buffer holds as text on any host that has few CPUs.
const MOST: u64 = 4 << 20;

/// A probe; dropping it removes it.
#[derive(Debug)]
pub struct Probe {
    made: Made,
}

impl Probe {
    /// Probes the first of these functions that the kernel has, in threads that this process
    /// starts from now on. `arguments` is what is kept, as the kernel takes it
    /// (`slot=+0(%si):u32`).
    ///
    /// # Errors
    /// A kernel without kprobes, or one that takes none of these; a user who may not.
    pub fn start(tracefs: &Tracefs, functions: &[&str], arguments: &str) -> Result<Self, Error> {
        let list = tracefs.root().join(LIST);
        let mut made = Made::new(tracefs.root())?;
        let group = group(&made.name());
        made.probed = true;
        register(&made.folder, None);
        let mut refused = None;
        for function in functions {
            match append(&list, &format!("p:{group}/{EVENT} {function} {arguments}")) {
                Ok(()) => {
                    refused = None;
                    break;
                }
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        made.write("buffer_size_kb", BUFFER_KIB)?;
        made.write("options/event-fork", "1")?;
        made.write("set_event_pid", &own_threads())?;
        made.write(&format!("events/{group}/{EVENT}/enable"), "1")?;
        made.write("tracing_on", "1")?;
        Ok(Probe { made })
    }

    /// What it saw, a line each, as the instance's file `trace` has it; nothing is consumed.
    ///
    /// # Errors
    /// When that can't be read.
    pub fn text(&self) -> Result<String, Error> {
        let path = self.made.folder.join("trace");
        let mut text = Vec::new();
        let read = fs::File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut text));
        read.map_err(Error::at(&path))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The group of probes of an instance; a group's name has no dashes.
fn group(instance: &str) -> String {
    instance.replace('-', "_")
}

fn append(list: &Path, line: &str) -> Result<(), Error> {
    // Not truncated: that would remove everybody's.
    let file = fs::OpenOptions::new().append(true).open(list).map_err(Error::at(list))?;
    (&file).write_all(format!("{line}\n").as_bytes()).map_err(Error::at(list))
}

/// Removes the probe of an instance that is gone; false if there is none.
pub(crate) fn remove(root: &Path, instance: &str) -> bool {
    let group = group(instance);
    let has = owned(root).iter().any(|(_, name)| name == instance);
    has && append(&root.join(LIST), &format!("-:{group}/{EVENT}")).is_ok()
}

/// As [`remove`], by the instance's folder.
pub(crate) fn remove_of(folder: &Path) {
    let name = folder.file_name().map(|name| name.to_string_lossy());
    if let (Some(root), Some(name)) = (folder.ancestors().nth(2), name) {
        remove(root, &name);
    }
}

/// Probes of vmeter processes, by their owners and the names of their instances.
pub(crate) fn owned(root: &Path) -> Vec<(Owner, String)> {
    let list = fs::read_to_string(root.join(LIST)).unwrap_or_default();
    list.lines().filter_map(instance_of).collect()
}

/// `p:vmeter_12_345_0/seen function arguments`
fn instance_of(line: &str) -> Option<(Owner, String)> {
    let (_, event) = line.split_once(' ').map_or(line, |(first, _)| first).split_once(':')?;
    let name = event.strip_suffix(EVENT)?.strip_suffix('/')?.replace('_', "-");
    Some((Owner::parse(&name)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "p:kprobes/p_vfs_read_0 vfs_read\n\
                         p:vmeter_12_345_6/seen __kvm_set_memory_region slot=+0(%si):u32\n\
                         r32:mine/seen do_sys_open\nshort\n";

    #[test]
    fn only_ones_own_probes_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(owned(root.path()).is_empty() && !remove(root.path(), "vmeter-12-345-6"));
        let list = root.path().join(LIST);
        fs::write(&list, TABLE).expect("written");
        let found: Vec<String> = owned(root.path()).into_iter().map(|(_, name)| name).collect();
        assert_eq!(found, ["vmeter-12-345-6"]);
        assert!(!remove(root.path(), "vmeter-12-345-7"));
        assert!(remove(root.path(), "vmeter-12-345-6"));
        let after = fs::read_to_string(&list).expect("there");
        assert_eq!(after.strip_prefix(TABLE), Some("-:vmeter_12_345_6/seen\n"), "{after}");
    }
}
