//! The guest's RAM, in the stopped VMM.

use crate::recorder::{Context, SourceError};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use vmeter_kernel_image::{locate, Candidate, Guest, KernelInfo, Located, MappedRam};
use vmeter_machine::launch::Tracee;
use vmeter_machine::vmm::Abilities;
use vmeter_model::Ns;

/// Guest RAM smaller than this can't hold a kernel.
const SMALLEST: u64 = 16 << 20;

/// Two sources look into the same stopped VMM: what the first found is kept.
static FOUND: Mutex<Option<((i32, Ns), Located)>> = Mutex::new(None);

/// The kernel that a run boots, and where what is known of it is cached.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    cache: PathBuf,
    /// The kernel image.
    pub path: PathBuf,
    ram_at_exit: bool,
}

impl GuestKernel {
    /// The kernel of a run that is watched; none if it is unknown.
    pub fn of(context: &Context<'_>) -> Option<Self> {
        let watched = context.watch != vmeter_model::run::WatchLevel::None;
        let path = context.kernel.filter(|_| watched)?;
        Some(GuestKernel {
            cache: context.cache.to_owned(),
            path: path.to_owned(),
            // Of a VMM that nothing is known of the best is hoped.
            ram_at_exit: context.vmm.ram_at_exit || context.vmm == Abilities::default(),
        })
    }

    /// What is known of it, from the cache if it was ever opened before.
    ///
    /// # Errors
    /// When the file is no kernel, or one without symbols.
    pub fn info(&self) -> Result<KernelInfo, SourceError> {
        KernelInfo::open(&self.cache, &self.path).map_err(failed)
    }

    /// Finds it in a stopped VMM, as [`look_into`], which a VMM may have made impossible.
    ///
    /// # Errors
    /// When the kernel is not there, or whatever `look` answers.
    pub fn look_into<T>(
        &self,
        tracee: &Tracee,
        info: &KernelInfo,
        look: impl FnOnce(&Guest<'_>) -> vmeter_kernel_image::Result<T>,
    ) -> Result<T, SourceError> {
        look_into(tracee, info, look).map_err(|error| {
            if self.ram_at_exit {
                return error;
            }
            SourceError::Other(format!(
                "{error}. This VMM unmaps its guest's RAM before it ends: end the run while the \
                 guest is there, by --until userspace or --until line:REGEX"
            ))
        })
    }
}

/// Finds the kernel in a stopped VMM and calls `look` with its memory.
///
/// # Errors
/// When the kernel is not there, or whatever `look` answers.
pub fn look_into<T>(
    tracee: &Tracee,
    info: &KernelInfo,
    look: impl FnOnce(&Guest<'_>) -> vmeter_kernel_image::Result<T>,
) -> Result<T, SourceError> {
    let host = |address: u64, buffer: &mut [u8]| tracee.read(address, buffer);
    let stop = (tracee.pid, tracee.stopped_ns);
    let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let located = match found.take().filter(|(of, _)| *of == stop) {
        Some((_, located)) => located,
        None => locate(&candidates(tracee)?, &host, info).map_err(failed)?,
    };
    let ram = MappedRam::new(located.regions.clone(), &host);
    let place = located.place;
    *found = Some((stop, located));
    drop(found);
    Guest::new(&ram, info, place).and_then(|guest| look(&guest)).map_err(failed)
}

/// The mappings that can be guest RAM: writable and large.
fn candidates(tracee: &Tracee) -> Result<Vec<Candidate>, SourceError> {
    let mappings = tracee.mappings().map_err(|error| SourceError::Io {
        path: Path::new("/proc").join(tracee.pid.to_string()).join("maps"),
        error,
    })?;
    Ok(mappings
        .iter()
        .filter(|m| m.permissions.starts_with("rw"))
        .map(|m| Candidate { address: m.start, length: m.end.saturating_sub(m.start) })
        .filter(|c| c.length >= SMALLEST)
        .collect())
}

/// An error of the kernel's reader, as a source's.
pub fn failed(error: vmeter_kernel_image::Error) -> SourceError {
    SourceError::Other(error.to_string())
}
