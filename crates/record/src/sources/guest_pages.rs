//! When a compressed kernel was loaded, unpacked and entered, by when the guest's RAM was written, with
//! nothing added to the guest or its VMM.
//!
//! A page that a guest never touched is not there (`/proc/PID/pagemap`,
//! Documentation/admin-guide/mm/pagemap.rst), and what is there can be read while the guest runs. A look
//! notes which places came into being, and whose first 8 bytes are others than before: one place each
//! 2 MiB, in up to 16 GiB (in more RAM fewer places, and whether they are there alone). Looks come in
//! intervals of a 64th of the time since the exec, from 4 to 10 ms (after half a minute, and once a
//! kernel was entered, 50 ms), and take no more than a 16th of it.
//!
//! What the places tell is in [`written`]: where the kernel was and what was loaded where stands in the
//! guest's RAM once the kernel runs.

mod written;

use super::read_bounded;
use crate::guest_ram::GuestKernel;
use crate::looking::Looking;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use vmeter_base::clock;
use vmeter_base::files::read_limited;
use vmeter_kernel_image::{BootParams, Guest};
use vmeter_machine::launch::{Mapping, Tracee};
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Accel, Event, EventKind, Ns};
use written::{parse, Page, Place, STACK_END_MAGIC};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-pages";

/// A line for each look that found something: when it began and when the one before ended
/// (`CLOCK_MONOTONIC`, ns), and the places, `STRIDE:ADDRESS` of the VMM, `=` the word that is there if
/// it changed (hexadecimal).
const FILE: &str = "guest-pages.txt";

/// Time between two looks: this part of the time since the exec, within these bounds.
const PART: Ns = 64;
const SHORTEST: Ns = 4_000_000;
const LONGEST: Ns = 10_000_000;
/// A boot loader's menu is over after so long, ns; later looks are so far apart.
const SOON: Ns = 30_000_000_000;
const LATER: Ns = 50_000_000;
/// A look may take this part of the time between two.
const SHARE: Ns = 16;
/// Mappings are read once in so many looks.
const MAPPED: u32 = 16;
/// So long after the exec, ns.
const MOST_NS: Ns = 120_000_000_000;
/// RAM that holds a compressed kernel and what it becomes is larger.
const SMALLEST: u64 = 64 << 20;
/// Places that are looked at of a mapping, and how far apart they are at least: a kernel, and its
/// first stack, begin on boundaries of this.
const PLACES: u64 = 8192;
const STRIDE: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// Largest kernel's file whose words are looked for, bytes.
const MOST_FILE: u64 = 256 << 20;
/// Of an entry of pagemap: the page is there, or in swap.
const THERE: u64 = 3 << 62;
/// When the guest's RAM was written.
pub struct GuestPages;

impl Recorder for GuestPages {
    type Parameters = Place;
    type Raw = (Vec<Page>, Place);
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        // These looks are on the host's clock, and an icount run is on the guest's.
        if context.accel == Some(Accel::Icount) {
            return None;
        }
        let kernel = GuestKernel::of(context)?;
        let path = context.dir.join(FILE);
        Some(Box::new(Recording {
            kernel,
            file: context.kernel.map(Path::to_owned),
            is_seen: false,
            path,
            looking: None,
            text: None,
            place: None,
        }) as _)
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        place: Place,
    ) -> Result<Self::Raw, SourceError> {
        let text = read_bounded(dir, source, 0)?;
        Ok((parse(&String::from_utf8_lossy(&text)), place))
    }

    fn decode(
        &self,
        (pages, place): &Self::Raw,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let event = |(symbol, seen): (&str, written::Seen)| Event {
            at: seen.at.saturating_sub(saved.run.exec_ns),
            error_ns: seen.error,
            source: NAME.into(),
            insns: None,
            what: EventKind::Reached { symbol: symbol.into() },
        };
        let told = if saved.run.icount { Vec::new() } else { written::told(pages, place) };
        Ok(told.into_iter().map(event).collect())
    }
}

struct Recording {
    kernel: GuestKernel,
    /// The kernel's file, where the VMM loads one itself.
    file: Option<PathBuf>,
    is_seen: bool,
    path: PathBuf,
    looking: Option<Looking>,
    text: Option<String>,
    place: Option<Place>,
}

impl Recording {
    /// Ends the looks at the process before this one, of which nothing is kept.
    fn end(&mut self) -> Option<String> {
        self.looking.take()?.end()
    }
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        // The plugin sees the first instructions of an image that the VMM loads itself.
        self.is_seen =
            self.file.is_some() && plan.injected.iter().any(|added| added.starts_with("-plugin"));
        // Without its symbols the kernel is not found at the end, and nothing is said.
        let _ = self.kernel.open();
        Ok(())
    }

    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.end();
        let tracee = tracee.clone();
        // Only what another kernel does is news then.
        let mut looks = Looks { entered: self.is_seen, ..Looks::default() };
        let look = move |text: &mut String, since: Ns| {
            let took = looks.look(&tracee, text)?;
            let wait = match since + took {
                since if since > MOST_NS => return None,
                since if since < SOON && !looks.entered => (since / PART).clamp(SHORTEST, LONGEST),
                _ => LATER,
            };
            Some(wait.max(took * SHARE))
        };
        let looking = Looking::start(NAME, String::new(), look);
        self.looking =
            Some(looking.map_err(|error| SourceError::Io { path: self.path.clone(), error })?);
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.text = self.end();
        if self.text.as_ref().is_some_and(|text| !text.is_empty()) {
            // Of a guest whose kernel is not found nothing can be told.
            self.place = self.kernel.addresses(tracee, places).ok().and_then(Place::of);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let ended = self.end();
        let Some(text) = self.text.take().or(ended).filter(|_| self.place.is_some()) else {
            return Ok(None);
        };
        let mut place = self.place.unwrap_or_default();
        // A file that is gone meanwhile, or is larger, tells less.
        if let Some(file) = self.file.and_then(|file| read_limited(&file, MOST_FILE).ok()) {
            place.add_words(&parse(&text), &file);
        }
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let clock = "CLOCK_MONOTONIC at each look";
        Ok(Some(recorder::record::<GuestPages>(&[FILE], clock, SHORTEST, &place)))
    }
}

/// Physical addresses of a kernel that tell what the writes of its RAM were, in the order of
/// [`Place::of`].
fn places(guest: &Guest<'_>) -> [Option<u64>; written::PLACES] {
    let text = guest.place().physical;
    let stack = ["init_stack", "init_thread_union"].into_iter().find_map(|name| {
        let offset =
            guest.info().symbols.get(name)?.checked_sub(*guest.info().symbols.get("_text")?)?;
        text.checked_add(offset)
    });
    let params = BootParams::take(guest).ok();
    let moved = params.and_then(|params| params.moved_to());
    let loaded = params.filter(|params| params.by_qemu);
    let code = loaded.map(|p| (p.code, p.code.saturating_add(p.payload)));
    let initrd = loaded.map(|params| params.initrd);
    let ends = [moved, code, initrd].map(|part| [part.map(|p| p.0), part.map(|p| p.1)]);
    let [[from, to], [code, code_end], [initrd, initrd_end]] = ends;
    [Some(text), stack, from, to, code, code_end, initrd, initrd_end]
}

/// The looks at one process.
#[derive(Default)]
struct Looks {
    /// When the last one ended.
    last: Ns,
    /// What can be RAM: from, to.
    ram: Vec<(u64, u64)>,
    /// Looks since that was read.
    since: u32,
    /// The places that are there, and what was last seen in each.
    there: HashMap<u64, u64>,
    /// A kernel was.
    entered: bool,
}

impl Looks {
    /// Adds a line for what is new. How long that took, ns; none if the process is gone.
    fn look(&mut self, tracee: &Tracee, text: &mut String) -> Option<Ns> {
        let at = clock::monotonic();
        self.since += 1;
        if self.ram.is_empty() || self.since >= MAPPED {
            let mappings = tracee.mappings().ok().filter(|all| !all.is_empty())?;
            let is_ram =
                |m: &&Mapping| m.permissions.starts_with("rw-") && m.end - m.start >= SMALLEST;
            self.ram = mappings.iter().filter(is_ram).map(|m| (m.start, m.end)).collect();
            self.since = 0;
        }
        let pagemap = File::open(format!("/proc/{}/pagemap", tracee.pid)).ok()?;
        let mut found = String::new();
        for (start, end) in self.ram.clone() {
            let stride = ((end - start) / PLACES).next_multiple_of(STRIDE).max(STRIDE);
            let all = || (start..end).step_by(stride as usize);
            for address in all() {
                if !self.there.contains_key(&address) && is_there(&pagemap, address) {
                    self.there.insert(address, 0);
                    if !self.entered {
                        let _ = write!(found, " {stride:x}:{address:x}");
                    }
                }
            }
            // Only what is there is read: a read of what is not would bring it into being.
            let there: Vec<u64> = all().filter(|at| self.there.contains_key(at)).collect();
            if stride == STRIDE {
                self.read(tracee, &there, &mut found);
            }
        }
        if !found.is_empty() {
            let _ = writeln!(text, "{at} {}{found}", self.last);
        }
        self.last = clock::monotonic();
        Some(self.last - at)
    }

    /// Notes the places whose word is another than at the last look; once a kernel was entered, those
    /// alone in which a first stack begins.
    fn read(&mut self, tracee: &Tracee, there: &[u64], found: &mut String) {
        for (address, word) in there.iter().zip(tracee.read_words(there)) {
            let before = self.there.insert(*address, word);
            let enters = word == STACK_END_MAGIC;
            if before != Some(word) && (enters || !self.entered) {
                let _ = write!(found, " {STRIDE:x}:{address:x}={word:x}");
            }
            self.entered |= enters;
        }
    }
}

/// True if a page of a process is there.
fn is_there(pagemap: &File, address: u64) -> bool {
    let mut entry = [0; 8];
    let read = pagemap.read_exact_at(&mut entry, address / PAGE * 8);
    read.is_ok() && u64::from_ne_bytes(entry) & THERE != 0
}
