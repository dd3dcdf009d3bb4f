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
//! (`virtual_time`). [`count`] then gives the guest's own events their instructions.

mod addresses;
mod decode;
#[path = "../../../../guest/plugin/src/format.rs"]
mod format;
mod virtual_time;

pub use addresses::{addresses, initcalls, Address};
pub use decode::{events, Clock, Header, Stamps};
pub use virtual_time::VirtualTime;

use super::{guest_ftrace, guest_printk, read_bounded};
use crate::source::{Context, Live, Source, SourceError};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use vmeter_base::{files, fnv};
use vmeter_kernel_image::ftrace::{Decoded, FtraceDump};
use vmeter_kernel_image::KernelImage;
use vmeter_machine::capabilities;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Accel, Event, Ns, RunRecord, What};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "tcg-plugin";

const STAMPS: &str = "tcg-stamps.bin";
const LIST: &str = "tcg-addresses.txt";

/// The plugin, for the host's architecture; empty where it could not be built.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vmeter-tcg-plugin.so"));

/// A stamp is one clock reading by the vCPU's own thread as it enters the block.
const ERROR_NS: Ns = 1_000;

/// Blocks after which `light` no longer waits for `start_kernel`: SeaBIOS,
/// decompressor and early kernel are about 3200.
const LIGHT_LIMIT: u32 = 12_000;

/// Stamps by the TCG plugin.
pub struct TcgPlugin;

impl Source for TcgPlugin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let extent = match (context.watch, context.accel) {
            (WatchLevel::Light, Some(Accel::Tcg)) => Extent::Light,
            (WatchLevel::Full, Some(Accel::Tcg)) => Extent::Full,
            (WatchLevel::Light | WatchLevel::Full, Some(Accel::Icount)) => Extent::Virtual,
            _ => return None,
        };
        (context.vmm.plugins && !PLUGIN.is_empty()).then(|| {
            Box::new(Recording {
                dir: context.dir.to_owned(),
                cache: context.cache.to_owned(),
                kernel: context.kernel.map(Path::to_owned),
                extent,
                armed: false,
            }) as _
        })
    }

    fn decode(
        &self,
        dir: &Path,
        run: &RunRecord,
        source: &SourceRecord,
    ) -> Result<Vec<Event>, SourceError> {
        let (stamps, list) = read(dir, source)?;
        let clock = if run.icount {
            Clock::Virtual(learn(dir, run, &stamps, &list)?)
        } else {
            Clock::Host { exec_ns: run.exec_ns, total_ns: run.total_ns }
        };
        Ok(events(&stamps, &list, &clock))
    }
}

fn read(dir: &Path, source: &SourceRecord) -> Result<(Stamps, String), SourceError> {
    let stamps = read_bounded(dir, source, 0)?;
    let list = read_bounded(dir, source, 1)?;
    let stamps = Stamps::parse(&stamps).map_err(SourceError::Other)?;
    Ok((stamps, String::from_utf8_lossy(&list).into_owned()))
}

/// The virtual time of an icount run, by the guest's trace if it was recorded too.
fn learn(
    dir: &Path,
    run: &RunRecord,
    stamps: &Stamps,
    list: &str,
) -> Result<VirtualTime, SourceError> {
    let trace = match run.sources.iter().find(|source| source.name == guest_ftrace::NAME) {
        Some(trace) => FtraceDump::from_bytes(&read_bounded(dir, trace, 0)?)
            .map_err(|error| SourceError::Other(error.to_string()))?
            .decode(),
        None => Decoded::default(),
    };
    Ok(VirtualTime::learn(stamps, list, &trace, virtual_time::shift(&run.argv)))
}

/// Gives the events that the guest itself stamped, in an icount run, the
/// instructions executed by then. Initcalls that the plugin stamped are left to it:
/// what the guest stamps includes the writing of its trace.
pub fn count(dir: &Path, run: &RunRecord, events: &mut [Event]) {
    let source = run.sources.iter().find(|source| source.name == NAME).filter(|_| run.icount);
    let Some((stamps, list)) = source.and_then(|source| read(dir, source).ok()) else { return };
    let time = match learn(dir, run, &stamps, &list) {
        Ok(time) if stamps.header.counted && !time.is_unknown() => time,
        _ => return,
    };
    let initcall = |event: &Event| match &event.what {
        What::InitcallStart { function, .. } | What::InitcallEnd { function, .. } => {
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
        let text = match &self.kernel {
            Some(kernel) => cached_list(&self.cache, kernel, self.extent)?,
            None => addresses::list(&addresses(&|_| None, self.extent.watch())),
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
            Extent::Light => format!(",count=off,mode=early,limit={LIGHT_LIMIT}"),
            Extent::Full | Extent::Virtual => ",count=on,mode=full".to_owned(),
        };
        self.armed = plan.inject(&["-plugin", &argument]);
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        if !self.armed || !self.dir.join(STAMPS).exists() {
            return Ok(None);
        }
        let parameters = kaslr_slide(&self.dir)
            .map(|slide| ("kaslr_slide".to_owned(), serde_json::Value::from(slide)));
        let (clock, error_ns) = match self.extent {
            Extent::Virtual => ("virtual time, by instructions; each stamp has an error", 0),
            _ => ("CLOCK_MONOTONIC, read in the VMM as the vCPU gets there", ERROR_NS),
        };
        Ok(Some(SourceRecord {
            name: NAME.into(),
            files: vec![STAMPS.into(), LIST.into()],
            clock: clock.into(),
            error_ns,
            parameters: parameters.into_iter().collect(),
        }))
    }
}

/// How far KASLR moved the kernel, bytes, as the plugin saw it in the run whose
/// folder this is. Can be asked as soon as the kernel's C code runs.
pub fn kaslr_slide(dir: &Path) -> Option<u64> {
    let bytes = std::fs::read(dir.join(STAMPS)).ok()?;
    Stamps::parse(&bytes).ok()?.header.kaslr_slide
}

/// An error when this QEMU would refuse the argument, and so not boot at all.
fn check(plan: &LaunchPlan, cache: &Path) -> Result<(), SourceError> {
    let program = plan.argv.first().map(Path::new).unwrap_or(Path::new(""));
    let answer =
        capabilities::of(program, cache).map_err(|error| SourceError::Other(error.to_string()))?;
    if answer.capabilities.plugins {
        return Ok(());
    }
    Err(SourceError::Other(format!(
        "{} was built without TCG plugins (configure --enable-plugins): firmware and decompressor \
         will be told apart less exactly, and instructions are not counted",
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
fn cached_list(cache: &Path, kernel: &Path, extent: Extent) -> Result<String, SourceError> {
    let metadata = std::fs::metadata(kernel)
        .map_err(|error| SourceError::Io { path: kernel.to_owned(), error })?;
    let level = match extent {
        Extent::Light => "light",
        Extent::Full => "full",
        Extent::Virtual => "virtual",
    };
    let identity = format!(
        "{kernel:?} {} {:?} {:x}",
        metadata.len(),
        metadata.modified().ok(),
        fnv::hash(PLUGIN)
    );
    let path = cache.join(format!("tcg-{level}-{:016x}.txt", fnv::hash(identity.as_bytes())));
    if let Ok(text) = std::fs::read_to_string(&path) {
        return Ok(text);
    }
    let text = list_for(kernel, extent)?;
    write(&path, text.as_bytes())?;
    Ok(text)
}

fn list_for(kernel: &Path, extent: Extent) -> Result<String, SourceError> {
    let failed = |error: vmeter_kernel_image::Error| SourceError::Other(error.to_string());
    let image = KernelImage::open(kernel).map_err(failed)?;
    let symbols = image.symbols().map_err(failed)?;
    let mut all = Vec::new();
    if extent != Extent::Light {
        all.extend(initcalls(&image, &symbols));
    }
    if extent == Extent::Virtual {
        all.extend(addresses::writers(&symbols));
    }
    all.extend(addresses(&|name| symbols.address(name), extent.watch()));
    if let Some(entry) = image.pvh_entry() {
        all.push(Address::once(entry, "pvh_start_xen"));
    }
    Ok(addresses::list(&all))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), SourceError> {
    files::write_in_new_folder(path, bytes)
        .map_err(|error| SourceError::Io { path: path.to_owned(), error })
}

/// A path as an option of QEMU's: a comma is doubled.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
