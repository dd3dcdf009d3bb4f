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
use std::thread::JoinHandle;
use vmeter_model::Ns;

const HEADER: &[u8] = b"vmeter-chunks 1\n";

/// No console of a sane boot is larger; what comes after is counted, not kept.
const MAX_KEPT: u64 = 64 << 20;

/// Lines that are analysed: so many of the first, and of the last.
const FIRST_LINES: usize = 50_000;
const LAST_LINES: usize = 50_000;

/// Lines longer than this are cut, so that a guest cannot exhaust memory.
const MAX_LINE: usize = 64 << 10;

pub use vmeter_base::clock::monotonic;

/// Called with each read as it arrives; sees (stamp, bytes).
pub type Tap = Box<dyn FnMut(Ns, &[u8]) + Send>;

/// A thread that stamps and saves what arrives on a pipe, until its writers are gone
/// or [`Stamper::finish`] is called.
pub struct Stamper {
    thread: JoinHandle<io::Result<Totals>>,
    stop: OwnedFd,
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
        let thread = std::thread::Builder::new()
            .name("stamper".into())
            .spawn(move || copy(&pipe, &stop_read, file, tap, pace))?;
        Ok(Stamper { thread, stop })
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
    mut file: BufWriter<File>,
    mut tap: Option<Tap>,
    pace: Option<Timespec>,
) -> io::Result<Totals> {
    let mut totals = Totals::default();
    let mut buffer = vec![0_u8; 64 << 10];
    let mut stopping = false;
    loop {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let at = monotonic();
                keep(&mut file, &mut totals, at, &buffer[..n])?;
                if let Some(tap) = &mut tap {
                    tap(at, &buffer[..n]);
                }
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
    file.flush()?;
    Ok(totals)
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
            "{what} is cut at {kept} MiB: the {dropped} bytes after it are counted, not kept"
        ))
    }
}

/// A line with the stamps of its first and last byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When its first byte arrived, `CLOCK_MONOTONIC` ns.
    pub start: Ns,
    /// When its last byte arrived.
    pub end: Ns,
    /// Its text, invalid UTF-8 replaced, without the line end.
    pub text: String,
}

/// The lines of a saved file, of a flood only the first and the last of them. A file that
/// breaks off yields what is whole.
#[derive(Debug, Default)]
pub struct Lines {
    /// The lines, in order.
    pub lines: Vec<Line>,
    /// Lines left out between the first and the last.
    pub left_out: u64,
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
        keep(cutter.finish());
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

/// Makes lines of stamped bytes as they come.
///
/// What only steers a terminal is no part of a line's text, and does not begin one: a boot
/// loader ends its lines with `\n\r`, so that the carriage return comes long before the next
/// line's first character. What is written over a line (after a carriage return, or where the
/// cursor was moved to, as menus are drawn) is a line of its own, with its own time.
#[derive(Debug, Default)]
pub struct LineCutter {
    lines: Vec<Line>,
    pending: Vec<u8>,
    start: Ns,
    end: Ns,
    steering: Steering,
}

/// Where in a sequence that steers a terminal (ECMA-48) the last byte was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Steering {
    /// In none.
    #[default]
    Text,
    /// After a carriage return: what comes next decides.
    Returned,
    /// After an escape.
    Escape,
    /// In a control sequence, after this many bytes.
    Control(u8),
}

/// A longer control sequence is text that only looks like one.
const MAX_CONTROL: u8 = 32;
const ESCAPE: u8 = 0x1b;

impl LineCutter {
    /// Adds bytes that arrived at `at`.
    pub fn push(&mut self, at: Ns, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(at, byte);
        }
    }

    fn byte(&mut self, at: Ns, byte: u8) {
        match (self.steering, byte) {
            (Steering::Text | Steering::Returned, ESCAPE) => {
                self.overwritten();
                self.steering = Steering::Escape;
            }
            (Steering::Escape, b'[') => self.steering = Steering::Control(0),
            (Steering::Control(n), 0x20..=0x3f) if n < MAX_CONTROL => {
                self.steering = Steering::Control(n + 1);
            }
            // Cursor up, down, to a place; erasing.
            (Steering::Control(_), b'A' | b'B' | b'E'..=b'H' | b'J' | b'd' | b'f') => {
                self.steering = Steering::Returned;
                self.overwritten();
            }
            (Steering::Escape, 0x20..=0x7e) | (Steering::Control(_), 0x40..=0x7e) => {
                self.steering = Steering::Text;
            }
            _ => self.text(at, byte),
        }
    }

    fn text(&mut self, at: Ns, byte: u8) {
        match byte {
            b'\n' => {
                if self.pending.is_empty() {
                    self.start = at;
                }
                self.end = at;
                self.steering = Steering::Text;
                self.cut();
            }
            b'\r' => self.steering = Steering::Returned,
            _ => {
                self.overwritten();
                if self.pending.is_empty() {
                    self.start = at;
                }
                self.end = at;
                if self.pending.len() < MAX_LINE {
                    self.pending.push(byte);
                }
            }
        }
    }

    /// Ends a line that the next text is written over.
    fn overwritten(&mut self) {
        if self.steering == Steering::Returned && !self.pending.is_empty() {
            self.cut();
        }
        self.steering = Steering::Text;
    }

    fn cut(&mut self) {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.lines.push(Line { start: self.start, end: self.end, text });
        self.pending.clear();
    }

    /// Takes the lines that are complete so far.
    pub fn take(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// The text of the line that is still open (a login prompt has no line end).
    pub fn open_line(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.pending)
    }

    /// Ends the last line and returns all that are left.
    pub fn finish(mut self) -> Vec<Line> {
        if !self.pending.is_empty() {
            self.cut();
        }
        self.lines
    }
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
            let Lines { lines, left_out } = Lines::bounded(&saved, first, last);
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

    fn cut(reads: &[(Ns, &[u8])]) -> Vec<(Ns, Ns, String)> {
        let mut cutter = LineCutter::default();
        reads.iter().for_each(|(at, bytes)| cutter.push(*at, bytes));
        cutter.finish().into_iter().map(|l| (l.start, l.end, l.text)).collect()
    }

    #[test]
    fn a_line_begins_with_its_own_first_character() {
        // GRUB ends its lines with \n\r, and was silent for 3 s.
        let lines =
            cut(&[(1, b"Loading initial ramdisk ...\n\r"), (3_000, b"[    0.0] Linux\r\n")]);
        assert_eq!(lines[1], (3_000, 3_000, "[    0.0] Linux".into()));
        assert_eq!(lines.len(), 2);
        assert_eq!(cut(&[(1, b"a\r"), (2, b"\r\nb\r"), (3, b"\n")]).len(), 2);
    }

    #[test]
    fn what_is_written_over_a_line_has_its_own_time() {
        let texts = |reads: &[(Ns, &[u8])]| -> Vec<(Ns, String)> {
            cut(reads).into_iter().map(|(at, _, text)| (at, text)).collect()
        };
        let menu: &[(Ns, &[u8])] = &[
            (10, b"\x1b[2J\x1b[01;01HWelcome to GRUB!\x1b[05;80H*Debian"),
            (20, b"\x1b[22;04Hautomatically in 1s."),
            (1_000, b"\x1b[22;04Hautomatically in 0s.\r"),
            (1_100, b"Loading Linux 6.1\n"),
        ];
        let expected = [
            (10, "Welcome to GRUB!"),
            (10, "*Debian"),
            (20, "automatically in 1s."),
            (1_000, "automatically in 0s."),
            (1_100, "Loading Linux 6.1"),
        ];
        assert_eq!(texts(menu), expected.map(|(at, text)| (at, text.to_owned())));
        let coloured =
            texts(&[(1, b"[\x1b[0;32m  OK  \x1b[0m] Started \x1b[0;1;39mcron\x1b[0m.\n")]);
        assert_eq!(coloured, [(1, "[  OK  ] Started cron.".to_owned())]);
        assert_eq!(texts(&[(1, b"10 %\r"), (2, b"20 %\n")]).len(), 2);
        assert_eq!(texts(&[(1, b"a\x1b[999"), (2, b"\n")]), [(1, "a".to_owned())]);
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
