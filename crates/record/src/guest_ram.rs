//! The guest's RAM, in the stopped VMM.

mod pieces;
mod populated;
pub mod slots;

use crate::recorder::{Context, SourceError};
use pieces::Memory;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use vmeter_kernel_image::printk::PrintkDump;
use vmeter_kernel_image::{discover, locate, shape, FunctionTable, Guest};
use vmeter_kernel_image::{KernelImage, KernelInfo, Located, MappedRam};
use vmeter_machine::launch::{kvm, Tracee};
use vmeter_model::{Accel, Ns};

/// Two sources look into the same stopped VMM: what the first found is kept.
static FOUND: Mutex<Vec<((i32, Ns), Found)>> = Mutex::new(Vec::new());
/// The last file that has no symbols, when it was modified, and why: three sources open it, and it is unpacked for that.
static CLOSED: Mutex<Option<(PathBuf, Option<SystemTime>, String)>> = Mutex::new(None);
/// Two read a guest at once: who follows its log, and who ties its clock.
const MOST_FOUND: usize = 2;

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
    /// The run's folder.
    dir: PathBuf,
    cache: PathBuf,
    /// The kernel image; without one the kernel is found in RAM, by its own tables.
    path: Option<PathBuf>,
    ram_at_exit: bool,
    /// Its VMM runs while it is looked into.
    running: bool,
    known: Option<Arc<(KernelInfo, FunctionTable)>>,
    info: Option<KernelInfo>,
}

impl GuestKernel {
    /// The kernel of a run that is watched; none if nothing can be known of it.
    pub fn of(context: &Context<'_>) -> Option<Self> {
        if context.watch == vmeter_model::run::WatchLevel::None || context.vmm.restored.is_some() {
            return None;
        }
        // QEMU boots one from a disk; whoever else uses KVM may be told one by an API.
        let kvm = || context.accel == Some(Accel::Kvm) || Path::new("/dev/kvm").exists();
        let runs_linux = context.vmm.plugins || context.accel != Some(Accel::Tcg) && kvm();
        if context.kernel.is_none() && !runs_linux && !context.running {
            return None;
        }
        Some(GuestKernel {
            dir: context.dir.to_owned(),
            cache: context.cache.to_owned(),
            path: context.kernel.map(Path::to_owned),
            ram_at_exit: context.vmm.ram_at_exit || context.running,
            running: context.running,
            known: None,
            info: None,
        })
    }

    /// True if nobody said that there is a kernel at all, and what was looked into need not
    /// have had a guest.
    pub fn may_be_none(&self, tracee: &Tracee) -> bool {
        self.path.is_none() && (self.ram_at_exit || kvm::machines(tracee.pid) == 0)
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
        let modified = path.metadata().and_then(|file| file.modified()).ok();
        let mut closed = CLOSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((of, at, why)) = closed.as_ref() {
            if of == path && *at == modified {
                return Err(SourceError::Other(why.clone()));
            }
        }
        match KernelInfo::open(&self.cache, path).map_err(failed) {
            Ok(info) => self.info = Some(info),
            Err(error) => {
                *closed = Some((path.clone(), modified, error.to_string()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// False if its file shows that it cannot trace its initcalls.
    pub fn traces_initcalls(&self) -> bool {
        match (&self.info, &self.path) {
            (Some(info), _) => info.traces_initcalls,
            (None, Some(path)) => KernelImage::open(path).map_or(true, |i| i.traces_initcalls()),
            (None, None) => true,
        }
    }

    /// What it lacks of what its guest's RAM is read by, as [`KernelInfo::lacks`]: by its file, or by its
    /// own RAM once that was looked into; none if neither is known.
    pub fn lacks(&self) -> Option<[bool; 3]> {
        let known = self.known.as_ref().map(|known| &known.0).or(self.info.as_ref());
        let closed = || {
            let image = KernelImage::open(self.path.as_deref()?).ok()?;
            Some([true, image.section(".BTF").is_none(), !image.traces_initcalls()])
        };
        known.map(KernelInfo::lacks).or_else(closed)
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
            if self.ram_at_exit || kvm::machines(tracee.pid) > 0 {
                return error;
            }
            SourceError::Other(format!(
                "{error}. The VMM had closed its VM before vmeter could read the guest's RAM: end \
                 the run while the guest still runs, with --until userspace or --until line:REGEX"
            ))
        })
    }

    /// What `look` finds of the kernel in a stopped VMM, with the address in the VMM of each physical one
    /// that it names: none in RAM that is mapped in pieces.
    ///
    /// # Errors
    /// As [`GuestKernel::look_into`].
    pub fn addresses<const N: usize>(
        &mut self,
        tracee: &Tracee,
        look: impl FnOnce(&Guest<'_>) -> [Option<u64>; N],
    ) -> Result<[Option<u64>; N], SourceError> {
        let physical = self.look_into(tracee, |guest| Ok(look(guest)))?;
        let found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let regions = found.last().map_or(&[][..], |(_, found)| &found.located.regions);
        let in_vmm = |place: u64| {
            let address = regions.iter().find_map(|region| {
                let offset = place.checked_sub(region.gpa).filter(|at| *at < region.length)?;
                region.host.checked_add(offset)
            });
            address.filter(|address| *address < pieces::FILES)
        };
        Ok(physical.map(|place| in_vmm(place?)))
    }

    fn find<T>(
        &mut self,
        tracee: &Tracee,
        look: impl FnOnce(&Guest<'_>) -> vmeter_kernel_image::Result<T>,
    ) -> Result<T, SourceError> {
        let host = self.memory(tracee)?;
        let stop = (tracee.pid, tracee.stopped_ns);
        let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = found.iter().position(|(of, _)| *of == stop).map(|at| found.remove(at));
        let here = match (known, &self.info) {
            (Some((_, here)), _) => here,
            (None, Some(info)) => {
                let located = locate(host.candidates(), &host, info).map_err(failed)?;
                let given = Found { located, own: None };
                // It may have started another, of which no file was given.
                let other = (!given.located.life.goes_on()).then(|| self.discover(&host));
                let other = other.and_then(Result::ok);
                other.filter(|other| other.located.life > given.located.life).unwrap_or(given)
            }
            (None, None) => self.discover(&host)?,
        };
        found.push((stop, here.clone()));
        let old = found.len().saturating_sub(MOST_FOUND);
        found.drain(..old);
        drop(found);
        self.known = here.own;
        let info = self.known.as_ref().map(|known| &known.0).or(self.info.as_ref());
        let info = info
            .ok_or_else(|| SourceError::Other("vmeter has not opened the kernel's file".into()))?;
        let ram = MappedRam::new(here.located.regions, &host);
        Guest::new(&ram, info, here.located.place).and_then(|guest| look(&guest)).map_err(failed)
    }

    /// The kernel that runs in a memory, whichever it is.
    fn discover(&self, host: &Memory<'_>) -> Result<Found, SourceError> {
        let found = discover(host.candidates(), host, &self.cache).map_err(failed)?;
        let own = Some(Arc::new((found.info, found.functions)));
        Ok(Found { located: found.located, own })
    }

    /// The log of a kernel that has no symbols for it, by its shape.
    ///
    /// # Errors
    /// When RAM holds no such log.
    pub fn log_by_shape(&self, tracee: &Tracee) -> Result<PrintkDump, SourceError> {
        let host = self.memory(tracee)?;
        shape::find(host.candidates(), &host, vmeter_base::clock::monotonic()).map_err(failed)
    }

    /// The memory of a VMM that runs, of which only what is there is read.
    ///
    /// # Errors
    /// When its mappings can't be read.
    pub fn memory_that_runs<'a>(&self, tracee: &'a Tracee) -> Result<Memory<'a>, SourceError> {
        Ok(self.memory(tracee)?.running(true))
    }

    fn memory<'a>(&self, tracee: &'a Tracee) -> Result<Memory<'a>, SourceError> {
        let memory = Memory::of(tracee, &self.dir).map(|memory| memory.running(self.running));
        memory.map_err(|error| SourceError::Io {
            path: Path::new("/proc").join(tracee.pid.to_string()).join("maps"),
            error,
        })
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

/// An error of the kernel's reader, as a source's.
pub fn failed(error: vmeter_kernel_image::Error) -> SourceError {
    SourceError::Other(error.to_string())
}
