//! The mounted tracefs, its events, and what others left in it.

use crate::kprobe_events;
use crate::Error;
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::owner::Owner;

/// Where it is when nothing in `/proc/self/mounts` says so; the second is an
/// automount that appears when it is looked at.
const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// `/proc/self/ns/pid` in the host's own PID namespace: `PID_NS_INIT_INO` of the kernel's
/// include/uapi/linux/nsfs.h, the same since Linux 3.8.
const HOSTS_PIDS: &str = "pid:[4026531836]";

/// A mounted tracefs.
#[derive(Debug, Clone)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// Finds it.
    ///
    /// # Errors
    /// [`Error::NotMounted`], [`Error::NotPermitted`], [`Error::NoInstances`].
    pub fn find() -> Result<Self, Error> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let usual = USUAL.iter().map(PathBuf::from).filter(|path| path.join("events").exists());
        let root = mounted(&mounts).or_else(|| usual.into_iter().next());
        Self::at(root.ok_or(Error::NotMounted)?)
    }

    /// The one at `root`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::NoInstances`].
    pub fn at(root: PathBuf) -> Result<Self, Error> {
        let instances = root.join("instances");
        match fs::read_dir(&instances) {
            Ok(_) => Ok(Tracefs { root }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::NoInstances { path: instances })
            }
            Err(e) => Err(Error::at(&instances)(e)),
        }
    }

    /// False in a PID namespace of its own (a container). Events and `set_event_pid` name
    /// processes by the host's numbers, which are not those that this process sees.
    pub fn same_processes() -> bool {
        // A kernel without namespaces has no such link.
        let own = fs::read_link("/proc/self/ns/pid");
        own.map_or(true, |own| own.as_os_str() == HOSTS_PIDS)
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The format text of an event, `system:name`; none if the kernel has no such event.
    pub fn format(&self, event: &str) -> Option<String> {
        let (system, name) = event.split_once(':')?;
        let path = self.root.join("events").join(system).join(name).join("format");
        fs::read_to_string(path).ok()
    }

    /// Removes the instances of vmeter processes that were killed. Gives their names.
    ///
    /// One that cannot be removed is somebody's who lives where this process can't
    /// see it (another PID namespace): the kernel keeps what is open.
    pub fn sweep(&self) -> Vec<String> {
        let gone = self.owned().into_iter().filter(|(owner, _)| !owner.is_alive());
        gone.map(|(_, name)| name).filter(|name| self.remove(name)).collect()
    }

    /// The instances and probes of vmeter processes, by their owners and names.
    pub fn owned(&self) -> Vec<(Owner, String)> {
        let names = fs::read_dir(self.root.join("instances")).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut owned: Vec<(Owner, String)> =
            names.filter_map(|name| Some((Owner::parse(&name)?, name))).collect();
        let known: Vec<String> = owned.iter().map(|(_, name)| name.clone()).collect();
        let probes = kprobe_events::owned(&self.root).into_iter();
        owned.extend(probes.filter(|(_, name)| !known.contains(name)));
        owned
    }

    /// Removes an instance and its probe; false if it can't be, since somebody has it open.
    pub fn remove(&self, name: &str) -> bool {
        let removed = fs::remove_dir(self.root.join("instances").join(name)).is_ok();
        kprobe_events::remove(&self.root, name) || removed
    }
}

/// The mount point of a tracefs, from the text of `/proc/self/mounts`.
fn mounted(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        // Blanks in a path are written as \040: such a place is not looked for.
        (kind == "tracefs" && !place.contains('\\')).then(|| PathBuf::from(place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_tells_the_place() {
        let table = "proc /proc proc rw 0 0\n\
                     tracefs /sys/kernel/tracing tracefs rw,nosuid 0 0\n";
        assert_eq!(mounted(table), Some("/sys/kernel/tracing".into()));
        assert_eq!(mounted("none /a\\040b tracefs rw 0 0\nshort"), None);
    }

    #[test]
    fn a_folder_without_instances_is_no_tracefs() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Tracefs::at(folder.path().to_owned()).expect_err("empty");
        assert!(matches!(error, Error::NoInstances { .. }), "{error}");
    }
}
