//! `kprobe_events`: one list for the whole host (Documentation/trace/kprobetrace.rst), so
//! a line is added to it and taken out again, and the rest left alone. A probe's group has its
//! instance's name, so that whoever removes the one knows the other.

use crate::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use vmeter_base::owner::Owner;

pub(crate) const LIST: &str = "kprobe_events";
pub(crate) const EVENT: &str = "seen";

/// The group of probes of an instance; a group's name has no dashes.
pub(crate) fn group(instance: &str) -> String {
    instance.replace('-', "_")
}

pub(crate) fn append(list: &Path, line: &str) -> Result<(), Error> {
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
