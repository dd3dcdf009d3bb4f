//! What reading one file of someone else's may cost, decided in one place.
//!
//! A few kilobytes can unpack to terabytes, and a length field can claim anything. So whoever
//! reads an untrusted file has one [`Budget`], made of the file's size *as stored* (what it
//! takes on disk, what came through the pipe), and asks it before it goes on: [`Metered`] is
//! put around every decompressor, and what a count or a length makes grow is [`Budget::keep`]t.
//! The [`Limits`] of each kind of file stand here and nowhere else.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// So many bytes for any file, and so many more for each byte stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes that every file has.
    pub floor: u64,
    /// Bytes for each byte stored.
    pub factor: u64,
    /// The most for any file.
    pub most: u64,
}

impl Allowance {
    /// The most for a file of so many bytes.
    pub fn of(self, stored: u64) -> u64 {
        stored.saturating_mul(self.factor).saturating_add(self.floor).min(self.most)
    }
}

/// What a kind of file may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that come out of decompressors, of all layers together: what bounds time and
    /// temporary files.
    pub unpacked: Allowance,
    /// Bytes that are held in memory for what the file claims or counts.
    pub kept: Allowance,
}

/// Traces. Text of a tracer packs 10 to 40 times, the emptiest ring buffer's pages 100
/// times; symbols, formats and names of a large kernel take 40 MiB in memory.
pub const TRACE: Limits = Limits {
    unpacked: Allowance { floor: 64 << 20, factor: 256, most: u64::MAX },
    kept: Allowance { floor: 64 << 20, factor: 4, most: 1 << 30 },
};

/// Text of a tracer, once a trace is known to be that, may unpack to so many bytes for each
/// byte stored: it is read line by line, at some 100 MB a second.
const TEXT_FACTOR: u64 = 64;

/// Kernels, which are unpacked into memory: a distribution's packs 5 to 8 times.
pub const KERNEL: Limits = Limits {
    unpacked: Allowance { floor: 48 << 20, factor: 8, most: 1 << 30 },
    kept: Allowance { floor: 48 << 20, factor: 8, most: 1 << 30 },
};

/// What was more than a file of its size may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// It unpacks to more.
    Unpacked {
        /// The most, bytes.
        most: u64,
        /// What it is for.
        allowance: Allowance,
        /// The file's size as stored, bytes.
        stored: u64,
    },
    /// It claims or counts more.
    Kept {
        /// Of what.
        what: &'static str,
        /// The most, bytes.
        most: u64,
        /// The file's size as stored, bytes.
        stored: u64,
    },
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exceeded::Unpacked { most, allowance: Allowance { floor, factor, .. }, stored } => {
                write!(
                    f,
                    "the file unpacks to more than {most} bytes. The limit is {factor} times the \
                        compressed bytes read so far ({stored}), plus {} MiB. The file may be a \
                        decompression bomb. If you trust the file, unpack it yourself: vmeter \
                        reads uncompressed files without this limit",
                    floor >> 20
                )
            }
            Exceeded::Kept { what, most, stored } => write!(
                f,
                "reading the {what} of this file needs more than {most} bytes of memory (the \
                    limit for a file of {stored} bytes): the file is corrupt, or a decompression \
                    bomb"
            ),
        }
    }
}

impl std::error::Error for Exceeded {}

impl From<Exceeded> for io::Error {
    fn from(exceeded: Exceeded) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, exceeded)
    }
}

/// The account of one file; shared by all that read it, on any thread.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    stored: AtomicU64,
    unpacked: AtomicU64,
    kept: AtomicU64,
    exceeded: OnceLock<Exceeded>,
    /// It is text, which unpacks to less.
    text: AtomicBool,
}

impl Budget {
    /// For a file of so many bytes as stored.
    pub fn new(limits: Limits, stored: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limits,
            stored: AtomicU64::new(stored),
            unpacked: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            exceeded: OnceLock::new(),
            text: AtomicBool::new(false),
        })
    }

    /// For a file: of a sparse one only what is there counts.
    pub fn of(limits: Limits, metadata: &Metadata) -> Arc<Budget> {
        Budget::new(limits, stored(metadata))
    }

    /// Notes that the file is text.
    pub fn is_text(&self) {
        self.text.store(true, Ordering::Relaxed);
    }

    fn unpacking(&self) -> Allowance {
        let Allowance { factor, .. } = self.limits.unpacked;
        let least = if self.text.load(Ordering::Relaxed) { TEXT_FACTOR } else { u64::MAX };
        Allowance { factor: factor.min(least), ..self.limits.unpacked }
    }

    /// The file's size as stored, bytes: of a stream, what has come so far.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Notes that a stream has brought so many bytes more.
    pub fn arrived(&self, bytes: u64) {
        self.stored.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The most bytes that may be kept.
    pub fn most_kept(&self) -> u64 {
        self.limits.kept.of(self.stored())
    }

    /// The most bytes that may be unpacked.
    pub fn most_unpacked(&self) -> u64 {
        self.unpacking().of(self.stored())
    }

    /// Bytes that were unpacked so far.
    pub fn unpacked(&self) -> u64 {
        self.unpacked.load(Ordering::Relaxed)
    }

    /// Bytes that are kept so far.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Takes account of bytes that came out of a decompressor.
    ///
    /// # Errors
    /// When all together are more than the file may have.
    pub fn unpack(&self, bytes: u64) -> Result<(), Exceeded> {
        let before = self.unpacked.fetch_add(bytes, Ordering::Relaxed);
        let most = self.most_unpacked();
        if before.saturating_add(bytes) <= most {
            return Ok(());
        }
        let allowance = self.unpacking();
        Err(self.note(Exceeded::Unpacked { most, allowance, stored: self.stored() }))
    }

    /// Takes account of memory, before it is taken, for what the file claims or counts.
    ///
    /// # Errors
    /// When all together is more than the file may have.
    pub fn keep(&self, bytes: u64, what: &'static str) -> Result<(), Exceeded> {
        let most = self.most_kept();
        let kept = &self.kept;
        let added = kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kept| {
            kept.checked_add(bytes).filter(|sum| *sum <= most)
        });
        match added {
            Ok(_) => Ok(()),
            Err(_) => Err(self.note(Exceeded::Kept { what, most, stored: self.stored() })),
        }
    }

    /// Gives back memory that was taken for `bytes`.
    pub fn give_back(&self, bytes: u64) {
        let less = |kept: u64| Some(kept.saturating_sub(bytes));
        // Never fails: the function always answers.
        let _ = self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What was refused first, if anything was.
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded.get().copied()
    }

    fn note(&self, exceeded: Exceeded) -> Exceeded {
        *self.exceeded.get_or_init(|| exceeded)
    }
}

/// A file's size as stored: what it takes on disk, if that is less than its length.
pub fn stored(metadata: &Metadata) -> u64 {
    metadata.len().min(metadata.blocks().saturating_mul(512))
}

/// A decompressor, each byte of which is taken account of.
#[derive(Debug)]
pub struct Metered<R> {
    inner: R,
    budget: Arc<Budget>,
}

impl<R: Read> Metered<R> {
    /// Puts the meter around a decompressor.
    pub fn new(inner: R, budget: Arc<Budget>) -> Metered<R> {
        Metered { inner, budget }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(exceeded) = self.budget.exceeded() {
            return Err(exceeded.into());
        }
        let got = self.inner.read(out)?;
        self.budget.unpack(got as u64)?;
        Ok(got)
    }
}

/// A stream, whose size is known as it comes.
#[derive(Debug)]
pub struct Arriving<R> {
    inner: R,
    budget: Arc<Budget>,
}

impl<R: Read> Arriving<R> {
    /// Counts what comes through a pipe.
    pub fn new(inner: R, budget: Arc<Budget>) -> Arriving<R> {
        Arriving { inner, budget }
    }
}

impl<R: Read> Read for Arriving<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(out)?;
        self.budget.arrived(got as u64);
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits {
        unpacked: Allowance { floor: 100, factor: 10, most: 1000 },
        kept: Allowance { floor: 50, factor: 1, most: 1000 },
    };

    #[test]
    fn what_is_unpacked_and_kept_is_bounded_by_what_is_stored() {
        let budget = Budget::new(SMALL, 4);
        let mut out = Vec::new();
        let read = Metered::new(io::repeat(0), budget.clone()).read_to_end(&mut out);
        let error = read.expect_err("endless").to_string();
        assert!(error.contains("more than 140 bytes. The limit is"), "{error}");
        assert!(error.contains("the compressed bytes read so far (4)"), "{error}");
        assert!(out.len() <= 140 && budget.exceeded().is_some());
        let budget = Budget::new(SMALL, 4);
        assert_eq!(budget.keep(50, "names"), Ok(()));
        budget.give_back(10);
        assert_eq!(budget.keep(14, "names"), Ok(()));
        let error = budget.keep(1, "names").expect_err("one too many").to_string();
        assert!(
            error.starts_with("reading the names of this file needs more than 54 bytes"),
            "{error}"
        );
        assert_eq!(budget.kept(), 54, "what is refused is not kept");
        assert!(budget.keep(u64::MAX, "names").is_err());
    }

    #[test]
    fn a_stream_may_cost_by_what_has_come() {
        let budget = Budget::new(SMALL, 0);
        let mut stream = Arriving::new(&[0u8; 30][..], budget.clone());
        stream.read_exact(&mut [0; 20]).expect("there");
        assert_eq!((budget.stored(), budget.most_kept(), budget.most_unpacked()), (20, 70, 300));
        let budget = Budget::new(TRACE, 1 << 20);
        assert_eq!(budget.most_unpacked(), (64 << 20) + (256 << 20));
        budget.is_text();
        assert_eq!(budget.most_unpacked(), (64 << 20) + (64 << 20));
    }

    #[test]
    fn the_holes_of_a_sparse_file_are_not_stored() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 30).expect("sparse");
        assert!(stored(&file.metadata().expect("there")) < 1 << 20);
    }
}
