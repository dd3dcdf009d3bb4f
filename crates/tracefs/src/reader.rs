//! The thread that empties the ring buffers while the traced program runs.
//!
//! Full pages are spliced from `per_cpu/cpuN/trace_pipe_raw` to a file without
//! coming by. The kernel wakes the thread when a buffer is filled to
//! `buffer_percent`, not for each event. What is on the last, partly filled page
//! is read at the end.

use crate::Error;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, splice, PipeFlags, SpliceFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes moved by one splice: what a pipe holds by default.
const CHUNK: usize = 64 << 10;
/// How long the end of a process waits for the reader to let its files go.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pages of one CPU, in an unnamed file.
#[derive(Debug)]
pub(crate) struct CpuPages {
    pub cpu: u32,
    pub file: File,
    pub bytes: u64,
}

/// All that was read.
#[derive(Debug)]
pub(crate) struct Pages {
    pub cpus: Vec<CpuPages>,
    /// True if the limit was reached and recording switched off.
    pub limited: bool,
}

/// Tells the thread to end, and waits for that.
#[derive(Debug)]
pub(crate) struct Stop {
    /// Written to when it is time.
    signal: OwnedFd,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let signal = rustix::event::eventfd(0, flags)?;
        Ok(Stop { signal, ended: Mutex::new(false), changed: Condvar::new() })
    }

    /// Tells it, and waits until its files are closed.
    pub fn end(&self) {
        // An eventfd at its limit is readable all the same.
        let _ = rustix::io::write(&self.signal, &1u64.to_ne_bytes());
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.changed.wait_timeout_while(ended, PATIENCE, |ended| !*ended);
    }
}

/// Sets `ended` when the thread is over, however that came.
struct Over(Arc<Stop>);

impl Drop for Over {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

/// A running reader.
#[derive(Debug)]
pub(crate) struct Reader {
    pub stop: Arc<Stop>,
    thread: Option<JoinHandle<io::Result<Pages>>>,
}

impl Reader {
    /// Opens every CPU's pages of the instance at `folder` and begins to read.
    /// Unnamed files go to `spool`; after `limit` bytes recording is switched off.
    pub fn start(folder: &Path, spool: &Path, limit: u64, page: usize) -> Result<Self, Error> {
        let mut streams = Vec::new();
        for cpu in cpus(folder)? {
            let path = folder.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let raw = rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|e| Error::at(&path)(e.into()))?;
            let file = unnamed(spool).map_err(Error::at(spool))?;
            streams.push(Stream { raw, pages: CpuPages { cpu, file, bytes: 0 } });
        }
        let failed = |e: io::Error| Error::Thread(format!("could not be set up: {e}"));
        let stop = Arc::new(Stop::new().map_err(failed)?);
        let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let work = Work {
            streams,
            pipe,
            stop: stop.clone(),
            on: folder.join("tracing_on"),
            left: limit,
            page,
        };
        let over = Over(stop.clone());
        let thread = std::thread::Builder::new()
            .name("tracefs-reader".into())
            .spawn(move || {
                // Dropped last, after the files.
                let _over = over;
                work.run()
            })
            .map_err(failed)?;
        Ok(Reader { stop, thread: Some(thread) })
    }

    /// Ends it and gives what it read.
    pub fn finish(mut self) -> Result<Pages, Error> {
        self.stop.end();
        let thread = self.thread.take();
        let pages =
            thread.map(JoinHandle::join).unwrap_or_else(|| Ok(Err(io::ErrorKind::Other.into())));
        pages
            .map_err(|_| Error::Thread("panicked".into()))?
            .map_err(|e| Error::Thread(format!("failed: {e}")))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.end();
            // Its result is of no interest any more.
            let _ = thread.join();
        }
    }
}

/// CPUs that the instance has buffers for.
fn cpus(folder: &Path) -> Result<Vec<u32>, Error> {
    let path = folder.join("per_cpu");
    let entries = std::fs::read_dir(&path).map_err(Error::at(&path))?;
    let number = |name: &str| name.strip_prefix("cpu")?.parse().ok();
    let mut cpus: Vec<u32> =
        entries.flatten().filter_map(|e| number(e.file_name().to_str()?)).collect();
    cpus.sort_unstable();
    Ok(cpus)
}

/// A file without a name in `folder`.
fn unnamed(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Ok(fd.into()),
        // Not every file system can: then it has a name for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let name = format!(".{}.spool", vmeter_base::owner::Owner::this());
            let path = folder.join(name);
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(e) => Err(e.into()),
    }
}

struct Stream {
    raw: OwnedFd,
    pages: CpuPages,
}

struct Work {
    streams: Vec<Stream>,
    pipe: (OwnedFd, OwnedFd),
    stop: Arc<Stop>,
    on: PathBuf,
    left: u64,
    page: usize,
}

impl Work {
    fn run(mut self) -> io::Result<Pages> {
        let mut limited = false;
        loop {
            let (ready, over) = self.wait()?;
            for index in ready {
                let mut moved = self.splice(index)?;
                if moved == 0 && !over {
                    // Kernels before 5.0 wake for each event: take what there is.
                    moved = self.read_page(index)?;
                }
                self.left = self.left.saturating_sub(moved);
            }
            if self.left == 0 && !limited {
                limited = true;
                std::fs::write(&self.on, "0")?;
            }
            if over {
                break;
            }
        }
        for index in 0..self.streams.len() {
            while self.splice(index)? + self.read_page(index)? > 0 {}
        }
        let cpus = self.streams.into_iter().map(|stream| stream.pages).collect();
        Ok(Pages { cpus, limited })
    }

    /// Waits for pages: which streams have some, and whether this is the end.
    fn wait(&self) -> io::Result<(Vec<usize>, bool)> {
        let mut fds = vec![PollFd::new(&self.stop.signal, PollFlags::IN)];
        fds.extend(self.streams.iter().map(|s| PollFd::new(&s.raw, PollFlags::IN)));
        loop {
            match poll(&mut fds, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let over = ready(&fds[0]);
        Ok((
            fds[1..].iter().enumerate().filter(|(_, fd)| ready(fd)).map(|(i, _)| i).collect(),
            over,
        ))
    }

    /// Moves the full pages of a CPU to its file; gives the bytes.
    fn splice(&mut self, index: usize) -> io::Result<u64> {
        let stream = &mut self.streams[index];
        let mut total = 0;
        loop {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let n = match splice(&stream.raw, None, &self.pipe.1, None, CHUNK, flags) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(total),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            drain(&self.pipe.0, &stream.pages.file, n)?;
            stream.pages.bytes += n as u64;
            total += n as u64;
        }
    }

    /// Reads one page, full or not; gives the bytes.
    fn read_page(&mut self, index: usize) -> io::Result<u64> {
        let stream = &mut self.streams[index];
        let mut page = vec![0; self.page];
        match rustix::io::read(&stream.raw, &mut page) {
            Ok(0) | Err(Errno::AGAIN) => Ok(0),
            // What follows the page's own length is not written by the kernel.
            Ok(_) => {
                stream.pages.file.write_all(&page)?;
                stream.pages.bytes += page.len() as u64;
                Ok(page.len() as u64)
            }
            Err(Errno::INTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }
}

/// Moves `n` bytes that are in the pipe to the file.
fn drain(pipe: &impl AsFd, mut file: &File, n: usize) -> io::Result<()> {
    let mut left = n;
    while left > 0 {
        match splice(pipe, None, file, None, left, SpliceFlags::MOVE) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => left -= n.min(left),
            Err(Errno::INTR) => {}
            // File systems that can't be spliced to.
            Err(Errno::INVAL) => {
                let mut rest = vec![0; left];
                let pipe = rustix::io::dup(pipe)?;
                File::from(pipe).read_exact(&mut rest)?;
                file.write_all(&rest)?;
                left = 0;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
