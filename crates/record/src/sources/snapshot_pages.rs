//! Which pages of a snapshot a guest had when it answered, where the VMM maps the snapshot's files.
//!
//! `/proc/PID/pagemap` says which pages of a mapping are there when the run ends. Before the guest goes on
//! none of them is. A page that was only read has its neighbours with it, up to 16 in all, if they are in the
//! page cache (`fault_around_bytes`); one that was written is there by itself, as a copy.

use super::read_bounded;
use crate::owners::{self, Owned, PAGE};
use crate::recorder::{self, Context, ImageFile, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_machine::launch::{Mapping, Tracee};
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "snapshot-pages";

/// Pages, a line of those alike: number of the file, first page, how many, `read` or `written`, owner.
const FILE: &str = "snapshot-pages.txt";
/// Owners of a snapshot's pages are no larger, bytes.
const MAX_OWNERS: u64 = 64 << 20;
/// Bits of an entry of pagemap: it is there, in swap, a page of a file (admin-guide/mm/pagemap.rst).
const THERE: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
/// Entries that are asked for at once.
const CHUNK: u64 = 1 << 12;

/// What is said of pages whose owner is not known.
pub const UNKNOWN: &str = "unknown";

/// The pages of a snapshot.
pub struct SnapshotPages;

/// Pages that follow one another and are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// Number of the snapshot's file.
    pub file: usize,
    /// The first page of the file.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// The guest wrote to them.
    pub written: bool,
    /// Whose they are.
    pub owner: String,
}

/// The files, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Their names.
    #[serde(default)]
    pub files: Vec<String>,
}

impl Recorder for SnapshotPages {
    type Parameters = Parameters;
    type Raw = Vec<Touched>;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let snapshot = context.snapshot.filter(|_| context.watch != WatchLevel::None)?;
        Some(Box::new(Recording {
            files: snapshot.files.clone(),
            owners: snapshot.owners.clone(),
            path: context.dir.join(FILE),
            found: None,
        }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: Parameters,
    ) -> Result<Vec<Touched>, SourceError> {
        let text = read_bounded(dir, source, 0)?;
        Ok(parse(&String::from_utf8_lossy(&text)))
    }

    fn decode(
        &self,
        raw: &Vec<Touched>,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let value = raw.iter().fold(0u64, |sum, touched| sum.saturating_add(touched.pages));
        Ok(vec![Event {
            at: saved.run.total_ns,
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: EventKind::Count { name: "snapshot_pages".into(), value },
        }])
    }
}

fn parse(text: &str) -> Vec<Touched> {
    let line = |line: &str| {
        let mut words = line.splitn(5, ' ');
        let file = words.next()?.parse().ok()?;
        let (first, pages) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let written = words.next()? == "written";
        Some(Touched { file, first, pages, written, owner: words.next()?.to_owned() })
    };
    text.lines().filter_map(line).collect()
}

struct Recording {
    files: Vec<ImageFile>,
    owners: Option<PathBuf>,
    path: PathBuf,
    found: Option<Vec<(usize, u64, bool)>>,
}

impl Live for Recording {
    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let at = PathBuf::from(format!("/proc/{}/pagemap", tracee.pid));
        let io = |error| SourceError::Io { path: at.clone(), error };
        let mut found = Vec::new();
        let pagemap = File::open(&at).map_err(io)?;
        for mapping in tracee.mappings().map_err(io)? {
            let own = |file: &ImageFile| file.path.as_os_str() == mapping.path.as_str();
            if let Some(file) = self.files.iter().position(own) {
                pages(&pagemap, &mapping, file, &mut found).map_err(io)?;
            }
        }
        found.sort_unstable();
        found.dedup();
        self.found = Some(found);
        Ok(())
    }

    fn finish(self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(found) = self.found.filter(|found| !found.is_empty()) else { return Ok(None) };
        let known = owners_in(self.owners.as_deref());
        // The owners are those of the largest file: the RAM.
        let bytes = |file: &ImageFile| file.path.metadata().map_or(0, |found| found.len());
        let ram = (0..self.files.len()).max_by_key(|at| bytes(&self.files[*at]));
        let mut text = String::new();
        for one in alike(&found, |file, page| {
            let owned = if Some(file) == ram { owner_of(&known, page) } else { None };
            owned.unwrap_or(UNKNOWN)
        }) {
            let how = if one.written { "written" } else { "read" };
            let _ = writeln!(text, "{} {} {} {how} {}", one.file, one.first, one.pages, one.owner);
        }
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let name = |file: &ImageFile| {
            file.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        };
        let parameters = Parameters { files: self.files.iter().map(name).collect() };
        let clock = "none: vmeter counted the pages when the run ended";
        Ok(Some(recorder::record::<SnapshotPages>(&[FILE], clock, 0, &parameters)))
    }
}

/// The pages of a mapping that are there: file, page of the file, and whether it was written.
fn pages(
    pagemap: &File,
    mapping: &Mapping,
    file: usize,
    found: &mut Vec<(usize, u64, bool)>,
) -> std::io::Result<()> {
    let (first, count) = (mapping.start / PAGE, (mapping.end - mapping.start) / PAGE);
    let mut at = 0;
    while at < count {
        let some = CHUNK.min(count - at);
        let mut entries = vec![0u8; some as usize * 8];
        pagemap.read_exact_at(&mut entries, (first + at) * 8)?;
        for (n, entry) in (0u64..).zip(entries.chunks_exact(8)) {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            if entry & THERE != 0 {
                found.push((file, mapping.offset / PAGE + at + n, entry & OF_FILE == 0));
            }
        }
        at += some;
    }
    Ok(())
}

/// What a file says of whose the pages of a RAM are; nothing, if there is none.
pub(super) fn owners_in(path: Option<&Path>) -> Vec<Owned> {
    let text = path.and_then(|path| files::read_limited(path, MAX_OWNERS).ok());
    owners::parse(&String::from_utf8_lossy(&text.unwrap_or_default()))
}

/// Whose a page is, if that is known.
pub(super) fn owner_of(known: &[Owned], page: u64) -> Option<&str> {
    let after = known.partition_point(|owned| owned.first <= page);
    let owned = known.get(after.checked_sub(1)?)?;
    (page - owned.first < owned.pages).then_some(owned.owner.as_str())
}

/// Pages that follow one another and are alike, together.
fn alike<'o>(found: &[(usize, u64, bool)], owner: impl Fn(usize, u64) -> &'o str) -> Vec<Touched> {
    let mut all: Vec<Touched> = Vec::new();
    for (file, page, written) in found.iter().copied() {
        let owner = owner(file, page);
        match all.last_mut() {
            Some(last)
                if (last.file, last.written, last.owner.as_str()) == (file, written, owner)
                    && last.first + last.pages == page =>
            {
                last.pages += 1;
            }
            _ => {
                all.push(Touched { file, first: page, pages: 1, written, owner: owner.to_owned() })
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_that_are_alike_are_one_line_and_have_their_owners() {
        let known = owners::parse("4 2 kernel code\n9 1 file /bin/sh\nx\n");
        assert_eq!(owners::parse(&owners::to_text(&known)), known);
        let found = [(0, 3, false), (0, 4, false), (0, 5, false), (0, 9, true), (1, 4, false)];
        let all = alike(&found, |file, page| {
            if file == 0 {
                owner_of(&known, page).unwrap_or(UNKNOWN)
            } else {
                UNKNOWN
            }
        });
        let shown: Vec<_> =
            all.iter().map(|t| (t.file, t.first, t.pages, t.written, t.owner.as_str())).collect();
        let expected = [
            (0, 3, 1, false, UNKNOWN),
            (0, 4, 2, false, "kernel code"),
            (0, 9, 1, true, "file /bin/sh"),
            (1, 4, 1, false, UNKNOWN),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_mapped_file_has_the_pages_that_were_touched() {
        use rustix::mm::{mmap, MapFlags, ProtFlags};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ram").canonicalize().unwrap_or(folder.path().join("ram"));
        std::fs::write(&path, vec![1u8; 64 * PAGE as usize]).expect("written");
        let file = File::open(&path).expect("a file");
        let (rights, length) = (ProtFlags::READ | ProtFlags::WRITE, 64 * PAGE as usize);
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at =
            unsafe { mmap(null, length, rights, MapFlags::PRIVATE, &file, 0) }.expect("mapped");
        // SAFETY: inside of that mapping, which nobody else knows of.
        unsafe { at.cast::<u8>().add(33 * PAGE as usize).write_volatile(2) };
        let image = ImageFile { path: path.clone(), resident_bytes: None };
        let out = folder.path().join(FILE);
        let mut recording =
            Recording { files: vec![image], owners: None, path: out.clone(), found: None };
        let me = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        recording.exiting(&me).expect("looked at");
        let found = recording.found.clone().expect("pages");
        assert!(found.contains(&(0, 33, true)), "{found:?}");
        let source = Box::new(recording).finish(0).expect("written").expect("a source");
        assert_eq!(source.files, [FILE]);
        let touched = parse(&std::fs::read_to_string(out).expect("a file"));
        assert!(touched.iter().any(|t| t.written && t.first == 33 && t.owner == UNKNOWN));
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC{0,100}") {
            let _ = (parse(&text), owners::parse(&text));
        }
    }
}
