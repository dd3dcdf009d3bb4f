//! Bytes of a trace, wherever they come from.
//!
//! A trace may be a file, a pipe, or either of them compressed. Formats that are
//! read from front to back take a [`Lines`] or a plain stream, which is
//! decompressed as it is read. Formats whose header points into the file take a
//! [`RandomAccess`]; a compressed or piped one is first unpacked into an
//! unnamed temporary file, so memory stays bounded by the buffers. Files are
//! read with `pread`, not mapped: a mapped file that is truncated meanwhile
//! kills its reader with SIGBUS, and mapped pages count as resident memory.
//!
//! Whatever unpacks, here or inside a format, is taken account of by the trace's [`Budget`]: a
//! compressed file as a pipe is, by what of it was read so far, so that a bomb is known for one
//! at its beginning, however long it is.

use crate::Error;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use vmeter_base::bounds::{Arriving, Budget, Exceeded, Metered, TRACE};
use vmeter_base::files;

/// Bytes of a trace that [`crate::TraceFormat::probe`] gets to see.
pub const HEAD_BYTES: usize = 8192;

/// Longest line that is kept whole; the rest of a longer one is dropped.
pub const MAX_LINE: usize = 64 * 1024;

const BUFFER_BYTES: usize = 256 * 1024;

/// Most memory that the xz decoder may take (its dictionary), bytes.
const XZ_MEMORY_LIMIT: u64 = 96 << 20;

/// Largest window of a zstd stream, as a power of two: 64 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 26;

type Stream = Box<dyn Read + Send>;

enum Source {
    File(File, u64),
    Bytes(Arc<[u8]>),
    Stream(Stream),
}

/// An opened trace whose format is not yet known.
pub struct Input {
    name: String,
    head: Vec<u8>,
    source: Source,
    budget: Arc<Budget>,
}

/// A FIFO that has a name of its own may never have a writer; what a shell passes as a
/// descriptor (`<(command)`) has one.
fn refuse_named_fifo(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let descriptor = path.starts_with("/dev/fd")
        || path == Path::new("/dev/stdin")
        || path.starts_with("/proc") && path.parent().is_some_and(|dir| dir.ends_with("fd"));
    if descriptor || !std::fs::metadata(path)?.file_type().is_fifo() {
        return Ok(());
    }
    let why = "it is a FIFO, and vmeter could wait for a writer forever; give the trace as a \
        file, or on standard input: `… - < FIFO`";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl Input {
    /// Opens a file, a pipe, or standard input for `-`.
    ///
    /// # Errors
    /// [`Error::Open`] if it can't be opened or is a device or a folder, [`Error::Read`] if its
    /// first bytes can't be read or decompressed.
    pub fn open(path: &Path) -> Result<Input, Error> {
        let name = path.display().to_string();
        if path.as_os_str() == "-" {
            return Input::from_stream("standard input", Box::new(io::stdin()));
        }
        let open_error = |source| Error::Open { path: path.to_path_buf(), source };
        refuse_named_fifo(path).map_err(open_error)?;
        let file = files::open_stream(path).map_err(open_error)?;
        let meta = file.metadata().map_err(open_error)?;
        if !meta.is_file() {
            return Input::from_stream(&name, Box::new(file));
        }
        let mut magic = [0; 6];
        let got = read_full_at(&file, &mut magic, 0)
            .map_err(|source| Error::Read { name: name.clone(), source })?;
        if is_compressed(&magic[..got]) {
            return Input::from_stream(&name, Box::new(file));
        }
        let budget = Budget::of(TRACE, &meta);
        let mut head = vec![0; HEAD_BYTES.min(meta.len() as usize)];
        let got = read_full_at(&file, &mut head, 0)
            .map_err(|source| Error::Read { name: name.clone(), source })?;
        head.truncate(got);
        Ok(Input { name, head, source: Source::File(file, meta.len()), budget })
    }

    /// Wraps bytes in memory; compressed ones are decompressed as they are read.
    ///
    /// # Errors
    /// [`Error::Read`] if compressed bytes can't be decompressed from the start.
    pub fn from_bytes(name: &str, bytes: impl Into<Arc<[u8]>>) -> Result<Input, Error> {
        let bytes: Arc<[u8]> = bytes.into();
        if is_compressed(&bytes) {
            return Input::from_stream(name, Box::new(io::Cursor::new(bytes)));
        }
        let budget = Budget::new(TRACE, bytes.len() as u64);
        let head = bytes[..bytes.len().min(HEAD_BYTES)].to_vec();
        Ok(Input { name: name.to_string(), head, source: Source::Bytes(bytes), budget })
    }

    /// Wraps a stream, compressed or not. What it may cost grows as it comes.
    ///
    /// # Errors
    /// [`Error::Read`] if its first bytes can't be read or decompressed.
    pub fn from_stream(name: &str, stream: Stream) -> Result<Input, Error> {
        let budget = Budget::new(TRACE, 0);
        let stream = Box::new(Arriving::new(stream, budget.clone()));
        Input::streamed(name, stream, budget)
    }

    fn streamed(name: &str, stream: Stream, budget: Arc<Budget>) -> Result<Input, Error> {
        let error = |source| Error::Read { name: name.to_string(), source };
        let mut stream = decompressed(stream, &budget).map_err(error)?;
        let mut head = Vec::new();
        let read = stream.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head);
        if head.is_empty() {
            read.map_err(error)?;
        }
        Ok(Input { name: name.to_string(), head, source: Source::Stream(stream), budget })
    }

    /// Name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first [`HEAD_BYTES`] bytes, decompressed; fewer if the trace is shorter.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The account of what reading it costs; it goes on as the trace is read.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The whole trace from front to back.
    pub fn into_stream(self) -> Box<dyn BufRead + Send> {
        match self.source {
            Source::File(file, _) => Box::new(BufReader::with_capacity(BUFFER_BYTES, file)),
            Source::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            Source::Stream(rest) => Box::new(BufReader::with_capacity(
                BUFFER_BYTES,
                io::Cursor::new(self.head).chain(rest),
            )),
        }
    }

    /// The trace as lines of text.
    pub fn into_lines(self) -> Lines {
        let budget = self.budget.clone();
        budget.is_text();
        Lines::new(self.into_stream(), budget)
    }

    /// The trace with access to any offset.
    ///
    /// # Errors
    /// [`Error::Read`] if the temporary file for a compressed or piped trace
    /// can't be written, [`Error::TooMuch`] if it would be too large.
    pub fn into_random(self) -> Result<RandomAccess, Error> {
        let Input { name, head, source, budget } = self;
        match source {
            Source::File(file, len) => {
                Ok(RandomAccess { at: At::File(file), len, problem: None, budget })
            }
            Source::Bytes(bytes) => {
                let len = bytes.len() as u64;
                Ok(RandomAccess { at: At::Bytes(bytes), len, problem: None, budget })
            }
            Source::Stream(rest) => {
                let all = io::Cursor::new(head).chain(rest);
                let unpacked = unpack(all, budget.clone());
                match (budget.exceeded(), unpacked) {
                    (Some(exceeded), _) => Err(Error::TooMuch { name, exceeded }),
                    (None, unpacked) => unpacked.map_err(|source| Error::Read { name, source }),
                }
            }
        }
    }
}

/// Unpacks into an unnamed temporary file; a torn stream gives what came before.
fn unpack(mut stream: impl Read, budget: Arc<Budget>) -> io::Result<RandomAccess> {
    let folder = std::env::temp_dir();
    let failed = |error: io::Error| {
        let text = format!("unpacking it into {} (TMPDIR): {error}", folder.display());
        io::Error::new(error.kind(), text)
    };
    let mut file = tempfile::tempfile().map_err(failed)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut len = 0;
    let mut problem = None;
    loop {
        let got = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                problem = Some(format!(
                    "the compressed stream is cut off or damaged after {len} \
                    bytes: {e}"
                ));
                break;
            }
        };
        io::Write::write_all(&mut file, &buffer[..got]).map_err(failed)?;
        len += got as u64;
    }
    Ok(RandomAccess { at: At::File(file), len, problem, budget })
}

fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
        || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || head.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0])
}

fn decompressed(mut stream: Stream, budget: &Arc<Budget>) -> io::Result<Stream> {
    let mut magic = Vec::new();
    stream.by_ref().take(6).read_to_end(&mut magic)?;
    let kind = magic.clone();
    let stream = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(magic).chain(stream));
    Ok(if kind.starts_with(&[0x1f, 0x8b]) {
        metered(flate2::bufread::MultiGzDecoder::new(stream), budget)
    } else if kind.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(stream)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        metered(decoder, budget)
    } else if kind.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        let xz = liblzma::stream::Stream::new_stream_decoder(
            XZ_MEMORY_LIMIT,
            liblzma::stream::CONCATENATED,
        )
        .map_err(io::Error::other)?;
        metered(liblzma::bufread::XzDecoder::new_stream(stream, xz), budget)
    } else {
        Box::new(stream)
    })
}

fn metered(decoder: impl Read + Send + 'static, budget: &Arc<Budget>) -> Stream {
    Box::new(Metered::new(decoder, budget.clone()))
}

fn read_full_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

enum At {
    File(File),
    Bytes(Arc<[u8]>),
}

/// A trace that can be read at any offset.
pub struct RandomAccess {
    at: At,
    len: u64,
    problem: Option<String>,
    budget: Arc<Budget>,
}

impl RandomAccess {
    /// What reading it may cost; all that reads it asks the same one.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for an empty trace.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is known to be missing at the end, in words.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Reads as many bytes as there are at `offset`, at most the buffer's length.
    ///
    /// # Errors
    /// Whatever the system says; reading past the end is not an error.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.at {
            At::File(file) => read_full_at(file, buffer, offset),
            At::Bytes(bytes) => {
                let Some(rest) = usize::try_from(offset).ok().and_then(|o| bytes.get(o..)) else {
                    return Ok(0);
                };
                let n = rest.len().min(buffer.len());
                buffer[..n].copy_from_slice(&rest[..n]);
                Ok(n)
            }
        }
    }

    /// Reads `size` bytes at `offset`, or fewer if the trace ends before.
    ///
    /// What is allocated never exceeds what is there to be read.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn read_vec(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let there = self.len.saturating_sub(offset).min(size);
        let mut bytes = vec![0; usize::try_from(there).map_err(io::Error::other)?];
        let got = self.read_at(offset, &mut bytes)?;
        bytes.truncate(got);
        Ok(bytes)
    }
}

/// Lines of a text trace, one at a time, in bounded memory.
pub struct Lines {
    stream: Box<dyn BufRead + Send>,
    /// Whole lines, and where the next one begins.
    block: String,
    next: usize,
    /// The line read last.
    line: Range<usize>,
    /// The begin of a line whose end was not read yet, cut as [`MAX_LINE`] says.
    begun: Vec<u8>,
    number: u64,
    cut: u64,
    /// Lines with bytes that are not UTF-8.
    replaced: u64,
    problem: Option<String>,
    budget: Arc<Budget>,
}

impl Lines {
    fn new(stream: Box<dyn BufRead + Send>, budget: Arc<Budget>) -> Lines {
        Lines {
            stream,
            block: String::new(),
            next: 0,
            line: 0..0,
            begun: Vec::new(),
            number: 0,
            cut: 0,
            replaced: 0,
            problem: None,
            budget,
        }
    }

    /// Reads the next line, which [`Lines::text`] then shows; false at the end.
    pub fn advance(&mut self) -> bool {
        if self.next == self.block.len() && !self.fill() {
            self.line = 0..0;
            return false;
        }
        let rest = &self.block[self.next..];
        let length = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        let shown = if length > MAX_LINE { self.cut_short(self.next) } else { length };
        self.line = self.next..self.next + shown;
        self.next = (self.next + length + 1).min(self.block.len());
        self.number += 1;
        true
    }

    /// How much of a line that is too long is kept.
    #[cold]
    fn cut_short(&mut self, begin: usize) -> usize {
        self.cut += 1;
        let whole = |length: &usize| self.block.is_char_boundary(begin + length);
        (0..=MAX_LINE).rev().find(whole).unwrap_or(0)
    }

    /// Puts whole lines into the block, as many as are there; false at the end.
    fn fill(&mut self) -> bool {
        let mut bytes = std::mem::take(&mut self.block).into_bytes();
        bytes.clear();
        self.next = 0;
        let ended = loop {
            let chunk = match self.stream.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.problem = Some(format!("reading stopped after line {}: {e}", self.number));
                    break true;
                }
            };
            if chunk.is_empty() {
                break true;
            }
            let first = memchr::memchr(b'\n', chunk);
            // One byte too many shows that the line was longer.
            let room = MAX_LINE + 1 - self.begun.len();
            self.begun.extend_from_slice(&chunk[..first.unwrap_or(chunk.len()).min(room)]);
            let used = chunk.len();
            if let (Some(first), Some(last)) = (first, memchr::memrchr(b'\n', chunk)) {
                bytes.append(&mut self.begun);
                bytes.extend_from_slice(&chunk[first..=last]);
                let tail = &chunk[last + 1..];
                self.begun.extend_from_slice(&tail[..tail.len().min(MAX_LINE + 1)]);
                self.stream.consume(used);
                break false;
            }
            self.stream.consume(used);
        };
        if ended {
            bytes.append(&mut self.begun);
        }
        self.block = String::from_utf8(bytes).unwrap_or_else(|e| self.repaired(e.as_bytes()));
        !self.block.is_empty()
    }

    /// The lines with what is not UTF-8 replaced.
    #[cold]
    fn repaired(&mut self, bytes: &[u8]) -> String {
        let mut block = String::with_capacity(bytes.len());
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            let text = String::from_utf8_lossy(line);
            self.replaced += u64::from(matches!(text, Cow::Owned(_)));
            block.push_str(&text);
        }
        block
    }

    /// The line read last, without its end; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> &str {
        let line = &self.block[self.line.clone()];
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// Number of the line read last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What there was too much of, if reading was stopped for that.
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.budget.exceeded()
    }

    /// What went wrong so far, in words for [`crate::Losses`].
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.cut > 0 {
            problems.push(format!(
                "{} lines are longer than {MAX_LINE} bytes; vmeter ignores the rest of these \
                lines",
                self.cut
            ));
        }
        if self.replaced > 0 {
            let replaced = self.replaced;
            problems.push(format!(
                "{replaced} lines hold bytes that are not UTF-8; vmeter shows these bytes as \
                \u{fffd}"
            ));
        }
        problems.extend(self.problem.clone());
        problems
    }
}
