//! The guest's RAM, in the stopped VMM.

use crate::recorder::{Context, SourceError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use vmeter_kernel_image::{discover, locate, Candidate, FunctionTable, Guest};
use vmeter_kernel_image::{KernelInfo, Located, MappedRam};
use vmeter_machine::launch::Tracee;
use vmeter_machine::vmm::Abilities;
use vmeter_model::Ns;

/// Guest RAM smaller than this can't hold a kernel.
const SMALLEST: u64 = 16 << 20;

/// Two sources look into the same stopped VMM: what the first found is kept.
static FOUND: Mutex<Option<((i32, Ns), Found)>> = Mutex::new(None);

/// The kernel in a guest's RAM.
#[derive(Debug, Clone)]
struct Found {
    located: Located,
    /// What its RAM says of it, where no file was given.
    own: Option<Arc<(KernelInfo, FunctionTable)>>,
}

/// The kernel that a run boots, and where what is known of it is cached.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    cache: PathBuf,
    /// The kernel image; without one the kernel is found in RAM, by its own tables.
    path: Option<PathBuf>,
    ram_at_exit: bool,
    known: Option<Arc<(KernelInfo, FunctionTable)>>,
    info: Option<KernelInfo>,
}

impl GuestKernel {
    /// The kernel of a run that is watched; none if nothing can be known of it.
    pub fn of(context: &Context<'_>) -> Option<Self> {
        if context.watch == vmeter_model::run::WatchLevel::None {
            return None;
        }
        // Only of QEMU is known that a machine without a kernel boots one from a disk.
        if context.kernel.is_none() && !context.vmm.plugins {
            return None;
        }
        Some(GuestKernel {
            cache: context.cache.to_owned(),
            path: context.kernel.map(Path::to_owned),
            // Of a VMM that nothing is known of the best is hoped.
            ram_at_exit: context.vmm.ram_at_exit || context.vmm == Abilities::default(),
            known: None,
            info: None,
        })
    }

    /// True if no file was given of it.
    pub fn is_unnamed(&self) -> bool {
        self.path.is_none()
    }

    /// What its file says of it, once it is open.
    pub fn info(&self) -> Option<&KernelInfo> {
        self.info.as_ref()
    }

    /// Opens its file, if one was given: from the cache if it was ever opened before.
    ///
    /// # Errors
    /// When the file is no kernel, or one without symbols.
    pub fn open(&mut self) -> Result<(), SourceError> {
        let Some(path) = &self.path else { return Ok(()) };
        self.info = Some(KernelInfo::open(&self.cache, path).map_err(failed)?);
        Ok(())
    }

    /// Finds it in a stopped VMM, which a VMM may have made impossible, and calls `look` with
    /// its memory.
    ///
    /// # Errors
    /// When the kernel is not there, or whatever `look` answers.
    pub fn look_into<T>(
        &mut self,
        tracee: &Tracee,
        look: impl FnOnce(&Guest<'_>) -> vmeter_kernel_image::Result<T>,
    ) -> Result<T, SourceError> {
        self.find(tracee, look).map_err(|error| {
            if self.ram_at_exit {
                return error;
            }
            SourceError::Other(format!(
                "{error}. This VMM unmaps its guest's RAM before it ends: end the run while the \
                 guest is there, by --until userspace or --until line:REGEX"
            ))
        })
    }

    fn find<T>(
        &mut self,
        tracee: &Tracee,
        look: impl FnOnce(&Guest<'_>) -> vmeter_kernel_image::Result<T>,
    ) -> Result<T, SourceError> {
        let host = |address: u64, buffer: &mut [u8]| tracee.read(address, buffer);
        let stop = (tracee.pid, tracee.stopped_ns);
        let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let here = match (found.take().filter(|(of, _)| *of == stop), &self.info) {
            (Some((_, here)), _) => here,
            (None, Some(info)) => {
                let located = locate(&candidates(tracee)?, &host, info).map_err(failed)?;
                Found { located, own: None }
            }
            (None, None) => {
                let found = discover(&candidates(tracee)?, &host, &self.cache).map_err(failed)?;
                let own = Some(Arc::new((found.info, found.functions)));
                Found { located: found.located, own }
            }
        };
        *found = Some((stop, here.clone()));
        drop(found);
        self.known = here.own;
        let info = self.known.as_ref().map(|known| &known.0).or(self.info.as_ref());
        let info =
            info.ok_or_else(|| SourceError::Other("the kernel's file is not open".into()))?;
        let ram = MappedRam::new(here.located.regions, &host);
        Guest::new(&ram, info, here.located.place).and_then(|guest| look(&guest)).map_err(failed)
    }

    /// The functions of the kernel that was found.
    ///
    /// # Errors
    /// When its file can't be read any more.
    pub fn functions(&self) -> Result<FunctionTable, SourceError> {
        match (&self.known, &self.info, &self.path) {
            (Some(known), ..) => Ok(known.1.clone()),
            (None, Some(info), Some(path)) => info.functions(path).map_err(failed),
            _ => Err(SourceError::Other("no kernel was found".into())),
        }
    }
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
