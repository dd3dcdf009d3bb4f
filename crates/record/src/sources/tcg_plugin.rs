//! Guest addresses stamped by a TCG plugin, with instruction counts.
//!
//! In TCG, QEMU itself can say when the guest executes an address: a plugin
//! (`guest/plugin`) is called whenever QEMU translates a block, and puts a
//! callback into those that begin at a listed address. Nothing is asked of the
//! guest, and nothing of its command line: where KASLR moved the kernel, the
//! plugin finds out by itself, and [`kaslr_slide`] tells it to whoever wants to
//! read the guest's RAM.
//!
//! The hook costs about 3 us a translated block in QEMU 7.2, so that watching
//! decides how far it stays: `light` takes it away when `start_kernel` is
//! reached, some 3000 blocks into the boot, and leaves the rest to the guest's
//! own trace; `full` keeps it, and stamps every initcall's begin and end.
//!
//! With `--accel icount` the host's time plays no part, so the hook stays however
//! the run is watched, and stamps are placed by their instructions
//! (`virtual_time`), and then gives the guest's own events their instructions.

mod addresses;
mod decode;
#[path = "../../../../guest/plugin/src/format.rs"]
mod format;
mod stamps;
mod virtual_time;

pub use addresses::{addresses, initcalls, Address, LoadedBy};
pub use decode::{events, Clock};
pub use stamps::{Header, Stamps};
pub use virtual_time::VirtualTime;

use super::guest_ftrace::{self, GuestFtrace};
use super::{blamed_line, guest_printk, read_bounded};
use crate::guest_ram::failed;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use vmeter_base::{files, fnv};
use vmeter_kernel_image::ftrace::Decoded;
use vmeter_kernel_image::{BuildSymbols, KernelImage, Symbols};
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::{argv, capabilities};
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Accel, Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "tcg-plugin";

const STAMPS: &str = "tcg-stamps.bin";
const LIST: &str = "tcg-addresses.txt";
/// Largest of these files that is read at once, bytes.
const MAX_STAMPS: u64 = 64 << 20;

/// The plugin, for the host's architecture; empty where it could not be built.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vmeter-tcg-plugin.so"));

/// A stamp is one clock reading by the vCPU's own thread as it enters the block.
const ERROR_NS: Ns = 1_000;

/// Blocks after which `light` no longer waits for `start_kernel`: SeaBIOS,
/// decompressor and early kernel are about 3200.
const LIGHT_LIMIT: u32 = 12_000;
/// The same where UEFI or a boot loader comes first, which are larger.
const LIGHT_LIMIT_LOADED: u32 = 400_000;

/// Stamps by the TCG plugin.
pub struct TcgPlugin;

impl Recorder for TcgPlugin {
    type Parameters = Parameters;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let extent = match (context.watch, context.accel) {
            (WatchLevel::Light, Some(Accel::Tcg)) => Extent::Light,
            (WatchLevel::Full, Some(Accel::Tcg)) => Extent::Full,
            (WatchLevel::Light | WatchLevel::Full, Some(Accel::Icount)) => Extent::Virtual,
            _ => return None,
        };
        // A guest that goes on comes by none of the addresses that are listed.
        (context.vmm.plugins && context.snapshot.is_none() && !PLUGIN.is_empty()).then(|| {
            Box::new(Recording {
                dir: context.dir.to_owned(),
                cache: context.cache.to_owned(),
                kernel: context.kernel.map(Path::to_owned),
                symbols: context.spec.symbols.clone(),
                extent,
                armed: false,
            }) as _
        })
    }

    fn read(&self, dir: &Path, source: &SourceRecord, _: Parameters) -> Result<Raw, SourceError> {
        let stamps = read_bounded(dir, source, 0)?;
        let list = read_bounded(dir, source, 1)?;
        Ok(Raw {
            stamps: Stamps::parse(&stamps).map_err(SourceError::Other)?,
            list: String::from_utf8_lossy(&list).into_owned(),
            time: OnceCell::new(),
        })
    }

    fn decode(
        &self,
        raw: &Raw,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let run = saved.run;
        let clock = if run.icount {
            Clock::Virtual(raw.virtual_time(saved)?.clone())
        } else {
            Clock::Host { exec_ns: run.exec_ns, total_ns: run.total_ns }
        };
        Ok(events(&raw.stamps, &raw.list, &clock))
    }

    /// Gives the events that the guest itself stamped, in an icount run, the
    /// instructions executed by then. Initcalls that the plugin stamped are left to it:
    /// what the guest stamps includes the writing of its trace.
    fn refine_events(&self, saved: &Saved<'_>, events: &mut [Event]) {
        let raw = saved.raw(self).ok().flatten().filter(|_| saved.run.icount);
        let Some(raw) = raw.filter(|raw| raw.stamps.header.counted) else { return };
        let time = match raw.virtual_time(saved) {
            Ok(time) if !time.is_unknown() => time,
            _ => return,
        };
        let initcall = |event: &Event| match &event.what {
            EventKind::InitcallStart { function, .. } | EventKind::InitcallEnd { function, .. } => {
                Some(function.clone())
            }
            _ => None,
        };
        let stamped: HashSet<String> =
            events.iter().filter(|event| event.source == NAME).filter_map(initcall).collect();
        let of_guest = [guest_ftrace::NAME, guest_printk::NAME];
        for event in events.iter_mut().filter(|event| of_guest.contains(&event.source.as_str())) {
            if initcall(event).is_none_or(|function| !stamped.contains(&function)) {
                event.insns = Some(time.insns(event.at));
            }
        }
    }
}

/// What the plugin saw besides its stamps.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Parameters {
    /// How far KASLR moved the kernel, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kaslr_slide: Option<u64>,
}

/// The stamps, and the list of addresses that they are of.
#[derive(Debug)]
pub struct Raw {
    stamps: Stamps,
    list: String,
    time: OnceCell<VirtualTime>,
}

impl Raw {
    /// The virtual time of an icount run, by the guest's trace if it was recorded too.
    fn virtual_time(&self, saved: &Saved<'_>) -> Result<&VirtualTime, SourceError> {
        if let Some(time) = self.time.get() {
            return Ok(time);
        }
        let shift = virtual_time::shift(&saved.run.argv);
        let learn = |trace: &Decoded| VirtualTime::learn(&self.stamps, &self.list, trace, shift);
        let time = match saved.raw(&GuestFtrace)? {
            Some(trace) => learn(&trace.decoded),
            None => learn(&Decoded::default()),
        };
        Ok(self.time.get_or_init(|| time))
    }
}

/// How much of a boot is stamped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// To `start_kernel`.
    Light,
    /// All of it.
    Full,
    /// All of it, to be placed in virtual time.
    Virtual,
}

impl Extent {
    fn watch(self) -> WatchLevel {
        match self {
            Extent::Light => WatchLevel::Light,
            Extent::Full | Extent::Virtual => WatchLevel::Full,
        }
    }
}

struct Recording {
    dir: PathBuf,
    cache: PathBuf,
    kernel: Option<PathBuf>,
    /// Symbols of its build, for one that has none itself.
    symbols: Option<PathBuf>,
    extent: Extent,
    armed: bool,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        if !plan.may_inject {
            return Ok(());
        }
        check(plan, &self.cache)?;
        let plugin = unpack(&self.cache)?;
        let list = self.dir.join(LIST);
        let by = match argv::loads_kernel(&plan.argv) {
            true => LoadedBy::Vmm,
            false => LoadedBy::Guest,
        };
        let text = match &self.kernel {
            Some(kernel) => {
                let files = (kernel.as_path(), self.symbols.as_deref());
                cached_list(&self.cache, files, self.extent, by)?
            }
            None => addresses::list(&addresses(&|_| None, self.extent.watch(), by)),
        };
        let limit = match by {
            LoadedBy::Vmm => LIGHT_LIMIT,
            LoadedBy::Guest => LIGHT_LIMIT_LOADED,
        };
        write(&list, text.as_bytes())?;
        let mut argument = format!(
            "file={},addresses={},out={}",
            quoted(&plugin),
            quoted(&list),
            quoted(&self.dir.join(STAMPS))
        );
        // Counting made the decompressor 2.8 % slower: boots that are timed do without.
        argument += &match self.extent {
            Extent::Light => format!(",count=off,mode=early,limit={limit}"),
            Extent::Full | Extent::Virtual => ",count=on,mode=full".to_owned(),
        };
        self.armed = plan.inject(&["-plugin", &argument]);
        Ok(())
    }

    fn blamed(&self, stderr: &str) -> Option<String> {
        blamed_line(stderr, &["tcg-plugin"]).filter(|_| self.armed)
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        if !self.armed || !self.dir.join(STAMPS).exists() {
            return Ok(None);
        }
        let parameters = Parameters { kaslr_slide: kaslr_slide(&self.dir) };
        let (clock, error_ns) = match self.extent {
            Extent::Virtual => (
                "virtual time, counted in instructions; vmeter estimates the error of each \
                    stamp separately",
                0,
            ),
            Extent::Light | Extent::Full => (
                "CLOCK_MONOTONIC, which the plugin reads when the vCPU reaches a listed address",
                ERROR_NS,
            ),
        };
        Ok(Some(recorder::record::<TcgPlugin>(&[STAMPS, LIST], clock, error_ns, &parameters)))
    }
}

/// How far KASLR moved the kernel, bytes, as the plugin saw it in the run whose
/// folder this is. Can be asked as soon as the kernel's C code runs.
pub fn kaslr_slide(dir: &Path) -> Option<u64> {
    let bytes = files::read_limited(&dir.join(STAMPS), MAX_STAMPS).ok()?;
    Stamps::parse(&bytes).ok()?.header.kaslr_slide
}

/// An error when this QEMU would refuse the argument, and so not boot at all.
fn check(plan: &LaunchPlan, cache: &Path) -> Result<(), SourceError> {
    let first = || plan.argv.first().map(Path::new);
    let program = plan.program.as_deref().or_else(first).unwrap_or(Path::new(""));
    let answer =
        capabilities::of(program, cache).map_err(|error| SourceError::Other(error.to_string()))?;
    if answer.capabilities.plugins {
        return Ok(());
    }
    Err(SourceError::Other(format!(
        "{} was built without TCG plugins. To get them, build QEMU with configure \
            --enable-plugins. Without a TCG plugin, vmeter separates firmware and decompressor \
            less exactly and counts no instructions",
        program.display()
    )))
}

/// Puts the plugin into the cache, under a name that its content decides.
fn unpack(cache: &Path) -> Result<PathBuf, SourceError> {
    let path = cache.join(format!("tcg-plugin-{:016x}.so", fnv::hash(PLUGIN)));
    if std::fs::metadata(&path).map(|m| m.len()).ok() != Some(PLUGIN.len() as u64) {
        write(&path, PLUGIN)?;
    }
    Ok(path)
}

/// The list for a kernel, worked out once and kept in the cache.
fn cached_list(
    cache: &Path,
    files: (&Path, Option<&Path>),
    extent: Extent,
    by: LoadedBy,
) -> Result<String, SourceError> {
    let stand = |path: &Path| {
        let metadata = std::fs::metadata(path)
            .map_err(|error| SourceError::Io { path: path.to_owned(), error })?;
        Ok(format!("{path:?} {} {:?}", metadata.len(), metadata.modified().ok()))
    };
    let (kernel, symbols) = (stand(files.0)?, files.1.map(stand).transpose()?);
    let level = match extent {
        Extent::Light => "light",
        Extent::Full => "full",
        Extent::Virtual => "virtual",
    };
    let identity = format!("{kernel} {symbols:?} {by:?} {:x}", fnv::hash(PLUGIN));
    let path = cache.join(format!("tcg-{level}-{:016x}.txt", fnv::hash(identity.as_bytes())));
    if let Ok(text) = files::read_text_limited(&path, MAX_STAMPS) {
        return Ok(text);
    }
    let text = list_for(files, extent, by)?;
    write(&path, text.as_bytes())?;
    Ok(text)
}

fn list_for(
    (kernel, given): (&Path, Option<&Path>),
    extent: Extent,
    by: LoadedBy,
) -> Result<String, SourceError> {
    let image = KernelImage::open(kernel).map_err(failed)?;
    // What runs before a kernel has no symbols of it: without any, that much is stamped.
    let symbols = image.symbols().or_else(|_| match given {
        Some(file) => of_its_build(&image, file),
        None => Ok(Symbols::default()),
    });
    let symbols = symbols.map_err(failed)?;
    let mut all = Vec::new();
    if extent != Extent::Light {
        all.extend(initcalls(&image, &symbols));
    }
    if extent == Extent::Virtual {
        all.extend(addresses::writers(&symbols));
    }
    all.extend(addresses(&|name| symbols.address(name), extent.watch(), by));
    if let Some(entry) = image.pvh_entry() {
        all.push(Address::once(entry, "pvh_start_xen"));
    }
    Ok(addresses::list(&all))
}

/// Symbols that were given of a kernel which has none; an error if they are another build's.
fn of_its_build(image: &KernelImage, file: &Path) -> vmeter_kernel_image::Result<Symbols> {
    let build = BuildSymbols::open(file)?;
    if addresses::fits(image, build.symbols()) {
        return Ok(build.into_symbols());
    }
    Err(vmeter_kernel_image::Error::OtherBuild(format!(
        "--symbols {}: these symbols are of another build than {}: they give a wrong address for \
         the kernel's table of initcalls",
        file.display(),
        image.path().display()
    )))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), SourceError> {
    files::write_in_new_folder(path, bytes)
        .map_err(|error| SourceError::Io { path: path.to_owned(), error })
}

/// A path as an option of QEMU's: a comma is doubled.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
