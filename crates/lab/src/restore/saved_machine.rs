//! The machine that a snapshot is made of, and one way to go on from that.

use super::method::Method;
use anyhow::Result;
use regex::Regex;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_machine::argv;
use vmeter_machine::backend::Machine;
use vmeter_machine::snapshots::{Request, Snapshots};
use vmeter_session::failure::{failure, usage, Class};

/// A machine that vmeter saves and restores in one way.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub method: Method,
    /// The machine, as it is booted.
    pub machine: Machine,
}

/// What its making takes part in.
pub(super) struct Making<'a> {
    pub saved: &'a Saved,
    /// The ready point.
    pub until: &'a Regex,
    pub timeout: Duration,
    pub pin: &'a [usize],
}

/// What a VMM does by its API, if that is how its snapshots are made.
pub(super) fn by_api(machine: &Machine) -> Option<&'static dyn Snapshots> {
    machine.dialect?.snapshots()
}

/// Refuses a machine whose snapshots vmeter can't make.
///
/// # Errors
/// Class usage.
pub(super) fn check(machine: &Machine) -> Result<()> {
    if by_api(machine).is_none() && !machine.abilities().monitor || machine.script.is_some() {
        return Err(usage(
            "vmeter makes and restores snapshots of QEMU, Firecracker and cloud-hypervisor: for \
             another VMM, give --create CMD and --restore CMD",
        ));
    }
    let boots = |read: vmeter_machine::vmm::ParsedCommandLine| {
        read.kernel.is_some() || read.firmware.is_some() || machine.config.is_some()
    };
    let (Some(_), Some(dialect)) = (by_api(machine), machine.dialect) else { return Ok(()) };
    let has_vsock =
        machine.config.as_ref().is_some_and(|config| !config.content["vsock"].is_null())
            || argv::long(&machine.argv, "vsock").is_some();
    match boots(dialect.read(&machine.argv)) {
        true if has_vsock => Err(usage(
            "this machine has a vsock device: its socket stays when vmeter ends the VMM, and the \
                next VMM cannot make it again. Leave the device out, or give --create CMD and \
                --restore CMD",
        )),
        true => Ok(()),
        false => Err(usage(format!(
            "this command line boots no guest, so vmeter has no guest to save: give a command \
             line with which {} boots a guest without requests to the VMM's API",
            dialect.vmm()
        ))),
    }
}

impl Saved {
    fn memory_mib(&self) -> u64 {
        argv::memory_mib(&self.machine.argv).unwrap_or(128)
    }

    /// The command line by which QEMU boots it to save it into `image`.
    pub(super) fn booted(&self, image: &Path) -> Vec<OsString> {
        self.method.saved(&self.machine.plan().argv, image, self.memory_mib())
    }

    /// The machine that goes on from `image`.
    pub(super) fn restored(&self, image: &Path) -> Machine {
        let own = &self.machine;
        match by_api(own) {
            Some(api) => {
                let argv = api.restored(self.method.word(), &own.argv, image);
                Machine { argv, config: None, ..own.clone() }
            }
            None => {
                let argv = self.method.restored(&own.argv, image, self.memory_mib());
                Machine { argv, ..own.clone() }
            }
        }
    }

    /// What QEMU's monitor is told.
    pub(super) fn commands(&self, image: &Path) -> Vec<String> {
        if by_api(&self.machine).is_some() {
            Vec::new()
        } else {
            self.method.commands(image)
        }
    }

    /// What the VMM is requested by its API.
    pub(super) fn requests(&self, image: &Path) -> Vec<Request> {
        let api = by_api(&self.machine);
        api.map_or_else(Vec::new, |api| api.load(self.method.word(), image))
    }

    /// The RAM's file in `image`, if vmeter serves its pages.
    pub(super) fn served(&self, image: &Path) -> Option<PathBuf> {
        by_api(&self.machine)?.served(self.method.word(), image)
    }

    /// True where the guest's RAM is a file that is mapped.
    pub(super) fn maps(&self) -> bool {
        match by_api(&self.machine) {
            Some(api) => api.maps(self.method.word()),
            None => self.method == Method::Shared,
        }
    }
}

/// No snapshot was made, for what an error says.
pub(super) fn wrong(method: Method, error: &dyn std::fmt::Display) -> anyhow::Error {
    failure(Class::Answer, format!("no snapshot was made for {}: {error}", method.word()))
}
