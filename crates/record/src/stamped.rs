//! Bytes stamped on arrival, and the file that keeps them.
//!
//! A console or a firmware log has no clock of its own, so each read is stamped
//! with `CLOCK_MONOTONIC` the moment it returns. The file keeps the reads as
//! they came (format below); lines are made of them later, by the decoder, so
//! that a saved run and a live one are cut the same way.
//!
//! Format `vmeter-chunks 1`: that line, then for each read a line
//! `<CLOCK_MONOTONIC ns> <length>` followed by that many bytes and a newline.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use vmeter_model::Ns;

const HEADER: &[u8] = b"vmeter-chunks 1\n";

/// No console of a sane boot is larger; what comes after is counted, not kept.
const MAX_KEPT: u64 = 64 << 20;

/// Lines that are analysed: so many of the first, and of the last.
const FIRST_LINES: usize = 50_000;
const LAST_LINES: usize = 50_000;

mod cutter;

pub use cutter::{Line, LineCutter};
pub use vmeter_base::clock::monotonic;

/// Called with each read as it arrives; sees (stamp, bytes).
pub type Tap = Box<dyn FnMut(Ns, &[u8]) + Send>;

/// A thread that stamps and saves what arrives on a pipe, until its writers are gone
/// or [`Stamper::finish`] is called.
pub struct Stamper {
    thread: JoinHandle<io::Result<Totals>>,
    stop: OwnedFd,
    input: Input,
}

/// Where what arrives is kept: over the pipe, or by other ways ([`Input::push`]).
#[derive(Clone)]
pub struct Input(Arc<Mutex<Keeper>>);

struct Keeper {
    file: BufWriter<File>,
    totals: Totals,
    tap: Option<Tap>,
    /// What comes over the pipe is left out.
    is_shut: bool,
}

impl Keeper {
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let at = monotonic();
        keep(&mut self.file, &mut self.totals, at, bytes)?;
        if let Some(tap) = &mut self.tap {
            tap(at, bytes);
        }
        Ok(())
    }
}

impl Input {
    /// Stamps and keeps bytes that did not come over the pipe.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&self, bytes: &[u8]) -> io::Result<()> {
        self.lock().keep(bytes)
    }

    /// Leaves out what comes over the pipe from now on: others write to it as well.
    pub fn shut_pipe(&self) {
        self.lock().is_shut = true;
    }

    fn piped(&self, bytes: &[u8]) -> io::Result<()> {
        let mut keeper = self.lock();
        if keeper.is_shut {
            return Ok(());
        }
        keeper.keep(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Keeper> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a [`Stamper`] saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Bytes not kept because the file had reached its limit.
    pub dropped: u64,
}

impl Stamper {
    /// Starts stamping what arrives on `pipe` into the file `path`.
    ///
    /// # Errors
    /// When the file, the stop pipe or the thread cannot be made.
    pub fn start(pipe: OwnedFd, path: &Path, tap: Option<Tap>) -> io::Result<Self> {
        Self::paced(pipe, path, tap, None)
    }

    /// As [`Stamper::start`], but within a burst the pipe is looked at once every `pace`.
    ///
    /// A guest that writes byte by byte would otherwise wake this thread for each byte,
    /// which is the writer's time, not ours. The first byte of a burst is stamped at once,
    /// what follows up to `pace` late.
    ///
    /// # Errors
    /// As [`Stamper::start`].
    pub fn paced(
        pipe: OwnedFd,
        path: &Path,
        tap: Option<Tap>,
        pace: Option<Timespec>,
    ) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(256 << 10, File::create(path)?);
        file.write_all(HEADER)?;
        let (stop_read, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let keeper = Keeper { file, totals: Totals::default(), tap, is_shut: false };
        let input = Input(Arc::new(Mutex::new(keeper)));
        let keeps = input.clone();
        let thread = std::thread::Builder::new()
            .name("stamper".into())
            .spawn(move || copy(&pipe, &stop_read, &keeps, pace))?;
        Ok(Stamper { thread, stop, input })
    }

    /// Where else than on the pipe bytes can be given to it.
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Reads what is still in the pipe, then ends the thread.
    ///
    /// A descendant of the VMM may hold the pipe open for ever; this does not wait for it.
    ///
    /// # Errors
    /// When reading or writing failed meanwhile.
    pub fn finish(self) -> io::Result<Totals> {
        drop(self.stop);
        self.thread.join().map_err(|_| io::Error::other("the stamping thread panicked"))?
    }
}

fn copy(
    pipe: &OwnedFd,
    stop: &OwnedFd,
    input: &Input,
    pace: Option<Timespec>,
) -> io::Result<Totals> {
    let mut buffer = vec![0_u8; 64 << 10];
    let mut stopping = false;
    loop {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                input.piped(&buffer[..n])?;
                if let (Some(pace), false) = (&pace, stopping) {
                    stopping = let_gather(stop, pace)?;
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if stopping => break,
            Err(Errno::AGAIN) => stopping = wait(pipe, stop)?,
            Err(error) => return Err(error.into()),
        }
    }
    let mut keeper = input.lock();
    keeper.file.flush()?;
    Ok(keeper.totals)
}

/// Lets a burst gather in the pipe; true if asked to stop meanwhile.
fn let_gather(stop: &OwnedFd, pace: &Timespec) -> io::Result<bool> {
    let mut fds = [PollFd::new(stop, PollFlags::IN)];
    match poll(&mut fds, Some(pace)) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}

/// Waits for bytes or the request to stop; true for the latter.
fn wait(pipe: &OwnedFd, stop: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(pipe, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[1].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}

fn keep(file: &mut impl Write, totals: &mut Totals, at: Ns, bytes: &[u8]) -> io::Result<()> {
    let n = bytes.len() as u64;
    let kept = totals.bytes - totals.dropped;
    totals.bytes += n;
    if kept + n > MAX_KEPT {
        totals.dropped += n;
        return Ok(());
    }
    writeln!(file, "{at} {n}")?;
    file.write_all(bytes)?;
    file.write_all(b"\n")
}

/// What a reader of the file has to know besides it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Dropped {
    /// Bytes that arrived and were not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
}

impl From<Totals> for Dropped {
    fn from(totals: Totals) -> Self {
        Dropped { dropped_bytes: Some(totals.dropped).filter(|bytes| *bytes > 0) }
    }
}

impl Dropped {
    /// What the user is told, if something of `what` was not kept.
    pub fn said(self, what: &str) -> Option<String> {
        let dropped = self.dropped_bytes?;
        let kept = MAX_KEPT >> 20;
        Some(format!(
            "{what} is cut at {kept} MiB: vmeter counts the {dropped} bytes after the cut, but \
                does not keep them"
        ))
    }
}

/// The lines of a saved file, of a flood only the first and the last of them. A file that
/// breaks off yields what is whole.
#[derive(Debug, Default)]
pub struct Lines {
    /// The lines, in order.
    pub lines: Vec<Line>,
    /// Lines left out between the first and the last.
    pub left_out: u64,
    /// When the screen was cleared, `CLOCK_MONOTONIC` ns, the first times.
    pub cleared: Vec<Ns>,
}

impl Lines {
    /// Cuts a saved file into lines.
    pub fn of(saved: &[u8]) -> Self {
        Self::bounded(saved, FIRST_LINES, LAST_LINES)
    }

    fn bounded(saved: &[u8], first: usize, last: usize) -> Self {
        let mut cutter = LineCutter::default();
        let mut all = Lines::default();
        let mut tail = VecDeque::new();
        let mut keep = |lines: Vec<Line>| {
            for line in lines {
                if all.lines.len() < first {
                    all.lines.push(line);
                    continue;
                }
                tail.push_back(line);
                if tail.len() > last {
                    tail.pop_front();
                    all.left_out += 1;
                }
            }
        };
        for (at, bytes) in chunks(saved) {
            cutter.push(at, bytes);
            keep(cutter.take());
        }
        let cleared = cutter.cleared().to_vec();
        keep(cutter.finish());
        all.cleared = cleared;
        all.lines.extend(tail);
        all
    }

    /// What is left out, in words: `what` is what was printed.
    pub fn said(&self, what: &str) -> Option<String> {
        (self.left_out > 0).then(|| {
            format!(
                "{what} has {} lines: the first {FIRST_LINES} and the last {LAST_LINES} are \
                 analysed, the {} between them are not",
                self.lines.len() as u64 + self.left_out,
                self.left_out
            )
        })
    }
}

/// Cuts a saved file into lines, all of them.
#[cfg(test)]
fn lines(saved: &[u8]) -> Vec<Line> {
    Lines::bounded(saved, usize::MAX, 0).lines
}

/// The reads of a saved file: (stamp, bytes).
pub fn chunks(saved: &[u8]) -> impl Iterator<Item = (Ns, &[u8])> {
    let mut rest = saved.strip_prefix(HEADER).unwrap_or(b"");
    std::iter::from_fn(move || {
        let end = rest.iter().take(64).position(|b| *b == b'\n')?;
        let (at, n) = std::str::from_utf8(&rest[..end]).ok()?.split_once(' ')?;
        let (at, n) = (at.parse::<Ns>().ok()?, n.parse::<usize>().ok()?);
        let body = rest.get(end + 1..)?;
        let bytes = body.get(..n)?;
        rest = body.get(n + 1..).unwrap_or(b"");
        Some((at, bytes))
    })
}

/// A pipe whose write end a VMM inherits, with room for bursts.
///
/// # Errors
/// When no pipe can be made.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A larger pipe keeps a chatty guest from waiting for us; the default does as well.
    let _ = rustix::pipe::fcntl_setpipe_size(write.as_fd(), 1 << 20);
    Ok((read, write))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_comes_back_as_stamped_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let (read, write) = pipe().unwrap();
        let stamper = Stamper::start(read, &path, None).unwrap();
        let mut writer = File::from(write);
        writer.write_all(b"one\r\ntw").unwrap();
        writer.write_all(b"o\n\nlast").unwrap();
        drop(writer);
        let totals = stamper.finish().unwrap();
        assert_eq!(totals, Totals { bytes: 14, dropped: 0 });
        let lines = lines(&std::fs::read(&path).unwrap());
        let texts: Vec<&str> = lines.iter().map(|l| l.text.as_str()).collect();
        assert_eq!(texts, ["one", "two", "", "last"]);
        assert!(lines.windows(2).all(|w| w[0].end <= w[1].end));
        assert!(lines.iter().all(|l| l.start <= l.end));
    }

    #[test]
    fn a_writer_that_stays_open_does_not_hold_us() {
        let folder = tempfile::tempdir().unwrap();
        let (read, write) = pipe().unwrap();
        let stamper = Stamper::start(read, &folder.path().join("c"), None).unwrap();
        assert_eq!(rustix::io::write(&write, b"kept").unwrap(), 4);
        assert_eq!(stamper.finish().unwrap().bytes, 4);
    }

    #[test]
    fn of_a_flood_the_first_and_the_last_lines_are_kept() {
        let mut saved = HEADER.to_vec();
        for (at, text) in [(1, "a\nb\nc\n"), (2, "d\ne\nf")] {
            saved.extend(format!("{at} {}\n{text}\n", text.len()).bytes());
        }
        let kept = |first, last| {
            let Lines { lines, left_out, .. } = Lines::bounded(&saved, first, last);
            (lines.into_iter().map(|l| l.text).collect::<String>(), left_out)
        };
        assert_eq!(kept(2, 1), ("abf".into(), 3));
        assert_eq!(kept(2, 4), ("abcdef".into(), 0));
        assert_eq!(kept(9, 0), ("abcdef".into(), 0));
        assert!(Lines::of(&saved).said("it").is_none());
        let flood = "y\n".repeat(FIRST_LINES + LAST_LINES + 7);
        let flood =
            Lines::of(&[HEADER, format!("1 {}\n{flood}\n", flood.len()).as_bytes()].concat());
        assert_eq!((flood.lines.len(), flood.left_out), (FIRST_LINES + LAST_LINES, 7));
        assert!(flood.said("it").is_some_and(|said| said.contains("100007 lines")));
    }

    proptest! {
        #[test]
        fn any_bytes_make_lines_of_bounded_size(noise in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut saved = HEADER.to_vec();
            saved.extend(&noise);
            let made: usize = lines(&saved).iter().map(|l| l.text.len()).sum();
            prop_assert!(made <= noise.len() * 3);
            lines(&noise);
        }
    }
}
