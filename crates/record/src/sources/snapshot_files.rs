//! When the files of a snapshot are open, whatever VMM restores it: by inotify(7), which asks nothing of
//! the VMM and needs no rights but to read the files.
//!
//! A part is loaded while its file is open; a file that stays open (one that is mapped, say) until it
//! was last read, as far as it was read at all. Pages of a mapped file that a guest touches later are no
//! event here. The largest file holds the RAM, the others hold states; one file alone holds both.

use super::{qemu_trace, read_bounded};
use crate::recorder::{self, Context, ImageFile, Live, Loaded, Recorder, Saved, SourceError};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vmeter_base::clock;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Ns, RunRecord, SnapshotPart};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "snapshot-files";

/// What happened, a line each: when (`CLOCK_MONOTONIC`, ns), the file's number, `open`, `read` or `close`.
const FILE: &str = "snapshot-files.txt";
/// Files that are watched at most.
const MOST_FILES: usize = 64;
/// A file that is read in small pieces has many events; the kernel joins those that nobody has taken.
const REST: Duration = Duration::from_millis(1);
/// What a stamp is off by: that rest, and the thread's way to a CPU.
const ERROR_NS: Ns = 2_000_000;
/// Lines kept: some minutes of a file that is read all the time.
const MOST_LINES: usize = 200_000;

/// The files of a snapshot.
pub struct SnapshotFiles;

/// A file of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// How much of it was in the page cache right before the run, bytes, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
}

/// The files that were watched, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// The files.
    #[serde(default)]
    pub files: Vec<Known>,
    /// What was loaded of them before the run, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It was opened.
    Open,
    /// It was read.
    Read,
    /// It was closed.
    Close,
}

/// What was heard, in order: when, of which file, what.
type Heard = Vec<(Ns, usize, What)>;

/// What was noted of the files of a run's snapshot, if it was of one.
pub fn known(run: &RunRecord) -> Parameters {
    let source = run.sources.iter().find(|source| source.name == NAME);
    let map = source.map(|source| source.parameters.clone().into_iter().collect());
    let parameters = map.and_then(|map| serde_json::from_value(Value::Object(map)).ok());
    parameters.unwrap_or_default()
}

impl Recorder for SnapshotFiles {
    type Parameters = Parameters;
    type Raw = (Heard, Vec<Known>);
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let snapshot = context.snapshot.filter(|_| context.watch != WatchLevel::None)?;
        let files: Vec<ImageFile> = snapshot.files.iter().take(MOST_FILES).cloned().collect();
        let path = context.dir.join(FILE);
        (!files.is_empty()).then(|| {
            let (loaded, served) = (snapshot.loaded, snapshot.served.clone());
            Box::new(Recording { files, served, path, loaded, listening: None, heard: None }) as _
        })
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Parameters,
    ) -> Result<Self::Raw, SourceError> {
        let text = read_bounded(dir, source, 0)?;
        Ok((parse(&String::from_utf8_lossy(&text)), parameters.files))
    }

    fn decode(
        &self,
        (heard, files): &Self::Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        // QEMU itself says what it loads.
        if saved.run.sources.iter().any(|source| source.name == qemu_trace::NAME) {
            return Ok(Vec::new());
        }
        let event = |(at, part): (Ns, SnapshotPart)| Event {
            // What was taken late happened before the VMM was stopped for its end.
            at: at.saturating_sub(saved.run.exec_ns).min(saved.run.total_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: EventKind::SnapshotPart { part },
        };
        Ok(parts(heard, files).into_iter().map(event).collect())
    }
}

fn parse(text: &str) -> Heard {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (at, file) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let what = match words.next()? {
            "open" => What::Open,
            "read" => What::Read,
            "close" => What::Close,
            _ => return None,
        };
        Some((at, file, what))
    };
    text.lines().filter_map(line).collect()
}

/// What a file holds.
fn part_of(file: usize, files: &[Known]) -> SnapshotPart {
    let largest = (0..files.len()).max_by_key(|at| files[*at].bytes);
    match files.get(file) {
        _ if files.len() == 1 => SnapshotPart::Both,
        _ if Some(file) == largest => SnapshotPart::Ram,
        Some(known) => SnapshotPart::State { device: known.name.clone() },
        None => SnapshotPart::Other,
    }
}

/// What is loaded from when on: of several open files the one that was opened last.
fn parts(heard: &Heard, files: &[Known]) -> Vec<(Ns, SnapshotPart)> {
    let spans = open_spans(heard);
    let Some(end) = spans.iter().map(|(_, end, _)| *end).max() else { return Vec::new() };
    let mut turns: Vec<Ns> = spans.iter().flat_map(|(start, end, _)| [*start, *end]).collect();
    turns.sort_unstable();
    turns.dedup();
    let mut found: Vec<(Ns, SnapshotPart)> = Vec::new();
    for at in turns.into_iter().filter(|at| *at < end) {
        let open = spans.iter().filter(|(start, end, _)| (*start..*end).contains(&at));
        let last = open.max_by_key(|(start, ..)| *start);
        let part = last.map_or(SnapshotPart::Other, |(.., file)| part_of(*file, files));
        if found.last().is_none_or(|(_, before)| *before != part) {
            found.push((at, part));
        }
    }
    found.push((end, SnapshotPart::Loaded));
    found
}

/// From when to when each file was open, or read.
fn open_spans(heard: &Heard) -> Vec<(Ns, Ns, usize)> {
    let mut open: BTreeMap<usize, (Ns, Ns, u32)> = BTreeMap::new();
    let mut spans = Vec::new();
    for (at, file, what) in heard {
        match what {
            What::Open => {
                let (.., count) = open.entry(*file).or_insert((*at, *at, 0));
                *count += 1;
            }
            What::Read => {
                if let Some((_, read, _)) = open.get_mut(file) {
                    *read = *at;
                }
            }
            What::Close => {
                let Some((start, _, count)) = open.get_mut(file) else { continue };
                *count -= 1;
                if *count == 0 {
                    spans.push((*start, *at, *file));
                    open.remove(file);
                }
            }
        }
    }
    spans.extend(open.into_iter().map(|(file, (start, read, _))| (start, read, file)));
    spans.retain(|(start, end, _)| start < end);
    spans
}

struct Recording {
    files: Vec<ImageFile>,
    served: Option<PathBuf>,
    path: PathBuf,
    loaded: Option<Loaded>,
    listening: Option<Listening>,
    /// What was heard until the VMM was stopped for its end, which closes its files.
    heard: Option<(String, Vec<Known>)>,
}

struct Listening {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<String>,
    known: Vec<Known>,
}

impl Listening {
    /// `served` is read by vmeter itself, which is nothing that the VMM does.
    fn start(files: &[ImageFile], served: Option<&Path>) -> io::Result<Self> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (mut numbers, mut known) = (BTreeMap::new(), Vec::new());
        let flags = WatchFlags::OPEN
            | WatchFlags::ACCESS
            | WatchFlags::CLOSE_NOWRITE
            | WatchFlags::CLOSE_WRITE;
        for ImageFile { path, resident_bytes } in files {
            if Some(path.as_path()) != served {
                numbers.insert(inotify::add_watch(&watch, path, flags)?, known.len());
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (bytes, resident_bytes) = (path.metadata()?.len(), *resident_bytes);
            known.push(Known { name, bytes, resident_bytes });
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        let listen = move || hear(&watch, &stopped, &numbers);
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(listen)?;
        Ok(Listening { stop, thread, known })
    }

    fn end(self) -> Option<(String, Vec<Known>)> {
        // The counter of an eventfd does not overflow by one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        Some((self.thread.join().ok()?, self.known))
    }
}

/// Writes down what happens to the files until it is told to stop.
fn hear(watch: &OwnedFd, stop: &OwnedFd, numbers: &BTreeMap<i32, usize>) -> String {
    let mut text = String::new();
    let mut lines = 0;
    loop {
        let mut polled = [PollFd::new(watch, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return text,
            Ok(_) => {}
        }
        let stopped = !polled[1].revents().is_empty();
        lines += take(watch, numbers, &mut text);
        if stopped || lines > MOST_LINES {
            return text;
        }
        std::thread::sleep(REST);
    }
}

/// Adds what has happened since it was last asked; how many lines that is.
fn take(watch: &OwnedFd, numbers: &BTreeMap<i32, usize>, text: &mut String) -> usize {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let at = clock::monotonic();
    let mut lines = 0;
    while let Ok(event) = reader.next() {
        let Some(file) = numbers.get(&event.wd()) else { continue };
        let flags = event.events();
        let word = if flags.contains(ReadFlags::OPEN) {
            "open"
        } else if flags.contains(ReadFlags::ACCESS) {
            "read"
        } else if flags.intersects(ReadFlags::CLOSE_NOWRITE | ReadFlags::CLOSE_WRITE) {
            "close"
        } else {
            continue;
        };
        let _ = writeln!(text, "{at} {file} {word}");
        lines += 1;
    }
    lines
}

impl Live for Recording {
    fn prepare(&mut self, _: &mut LaunchPlan) -> Result<(), SourceError> {
        // Of a wrapper's VMM it is prepared again, and goes on.
        if self.listening.is_none() {
            let started = Listening::start(&self.files, self.served.as_deref());
            let failed = |error| SourceError::Other(format!("{NAME}: {error}"));
            self.listening = Some(started.map_err(failed)?);
        }
        Ok(())
    }

    fn exiting(&mut self, _: &Tracee) -> Result<(), SourceError> {
        self.heard = self.listening.take().and_then(Listening::end);
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let ended = self.listening.take().and_then(Listening::end);
        let Some((text, files)) = self.heard.take().or(ended) else { return Ok(None) };
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let clock = "CLOCK_MONOTONIC when vmeter read the inotify event";
        let parameters = Parameters { files, loaded: self.loaded };
        Ok(Some(recorder::record::<SnapshotFiles>(&[FILE], clock, ERROR_NS, &parameters)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files() -> Vec<Known> {
        let known = |name: &str, bytes| Known { name: name.into(), bytes, resident_bytes: None };
        vec![known("state", 10), known("ram", 1000)]
    }

    #[test]
    fn a_part_is_loaded_while_its_file_is_open() {
        let heard = parse("5 0 open\n6 0 read\n20 0 close\n30 1 open\n35 1 read\n60 1 read\nx\n");
        let state = SnapshotPart::State { device: "state".into() };
        let expected = [
            (5, state),
            (20, SnapshotPart::Other),
            (30, SnapshotPart::Ram),
            (60, SnapshotPart::Loaded),
        ];
        assert_eq!(parts(&heard, &files()), expected);
        assert_eq!(parts(&parse("5 0 open\n"), &files()), []);
        let one = [Known { name: "all".into(), bytes: 9, resident_bytes: None }];
        let both = [(1, SnapshotPart::Both), (9, SnapshotPart::Loaded)];
        assert_eq!(parts(&parse("1 0 open\n9 0 close\n"), &one), both);
    }

    #[test]
    fn what_is_opened_is_heard() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ram");
        std::fs::write(&path, "memory").expect("written");
        let file = ImageFile { path: path.clone(), resident_bytes: Some(4) };
        let listening = Listening::start(&[file], None).expect("it listens");
        std::fs::read(&path).expect("read");
        std::thread::sleep(Duration::from_millis(20));
        let (text, known) = listening.end().expect("it ends");
        assert_eq!(known, [Known { name: "ram".into(), bytes: 6, resident_bytes: Some(4) }]);
        let heard: Vec<What> = parse(&text).into_iter().map(|(.., what)| what).collect();
        assert_eq!(heard, [What::Open, What::Read, What::Close], "{text}");
    }

    proptest! {
        #[test]
        fn any_text(text in "[0-9 a-z\n]{0,200}") {
            let found = parts(&parse(&text), &files());
            prop_assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }

        #[test]
        fn any_order(all in prop::collection::vec((0..50i64, 0..3usize, 0..3usize), 0..40)) {
            let what = |n| [What::Open, What::Read, What::Close][n];
            let mut all: Heard = all.into_iter().map(|(at, file, n)| (at, file, what(n))).collect();
            all.sort_by_key(|(at, ..)| *at);
            let found = parts(&all, &files());
            prop_assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
