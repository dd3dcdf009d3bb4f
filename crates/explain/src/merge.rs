//! The events of several traces in one order of time.
//!
//! The earliest on the common time base comes next. A [`Moment`] is plain data, so nothing
//! borrows from the readers.

use crate::ahead::Ahead;
use crate::evidence::name_traits::Traits;
use crate::moment::{Moment, Sym, Tid};
use crate::read::Read;
use crate::spool::Spool;
use crate::ExplainError;
use std::path::{Path, PathBuf};
use vmeter_timebase::Clocks;
use vmeter_trace::{open, Input, TraceInfo};

/// Files on their way.
pub struct Merge {
    files: Vec<String>,
    sources: Vec<Ahead>,
    /// Whose event was taken last.
    earliest: usize,
    clocks: Clocks,
}

impl Merge {
    /// Opens the files.
    ///
    /// # Errors
    /// As [`open`]; no thread for a file.
    pub fn open(spool: &Spool, cpu_hz: Option<f64>) -> Result<Merge, ExplainError> {
        let mut readers = Vec::with_capacity(spool.files.len());
        for path in &spool.files {
            readers.push(open(Input::open(path)?)?);
        }
        let paths = spool.files.iter().map(PathBuf::as_path);
        let infos = readers.iter().map(|reader| reader.info());
        let known: Vec<(&Path, &TraceInfo)> = paths.zip(infos).collect();
        let clocks = vmeter_timebase::align(&known, cpu_hz)?;
        let mut merge = Merge { files: Vec::new(), sources: Vec::new(), earliest: 0, clocks };
        for (number, (path, mut reader)) in (0_u16..).zip(spool.files.iter().zip(readers)) {
            // Unpacking ahead only saves time; the events are the same without it.
            let _ = reader.read_ahead(1);
            let name = spool.name(path);
            let source = Ahead::begin(number, reader, &merge.clocks)
                .map_err(|source| vmeter_trace::Error::Read { name: name.clone(), source })?;
            merge.files.push(name);
            merge.sources.push(source);
        }
        Ok(merge)
    }

    /// Takes the earliest event that has not come yet; false at the end.
    pub fn advance(&mut self) -> bool {
        if self.sources.len() > 1 {
            let due = self.sources.iter().enumerate();
            let due = due.filter_map(|(number, source)| Some((source.due()?, number)));
            let Some((_, number)) = due.min() else { return false };
            self.earliest = number;
        }
        self.sources.get_mut(self.earliest).is_some_and(Ahead::advance)
    }

    /// The event that was taken last.
    pub fn current(&self) -> Option<&Moment> {
        self.sources.get(self.earliest)?.current()
    }

    /// What the files say of themselves.
    pub fn infos(&self) -> impl Iterator<Item = &TraceInfo> {
        self.sources.iter().map(Ahead::info)
    }

    /// A stamp of a file on the common time base.
    pub fn common(&self, file: u16, stamp: u64) -> u64 {
        self.clocks.common(file, stamp)
    }

    /// The name behind a number.
    pub fn name(&self, sym: Sym) -> &str {
        self.sources.get(sym.file() as usize).map_or("other", |source| source.name(sym.id()))
    }

    /// What that name says.
    #[inline]
    pub fn traits(&self, sym: Sym) -> Traits {
        let source = self.sources.get(sym.file() as usize);
        source.map_or_else(Traits::default, |source| source.traits(sym.id()))
    }

    /// What the name of a call says; nothing without one.
    #[inline]
    pub fn traits_of(&self, call: Option<Sym>) -> Traits {
        call.map_or_else(Traits::default, |call| self.traits(call))
    }

    /// A thread's name as far as it is known now.
    pub fn thread_name(&self, thread: Tid) -> &str {
        self.sources.get(thread.file as usize).map_or("", |source| source.thread_name(thread.tid))
    }

    /// How often threads of a file got another name until now.
    pub fn renamed(&self, file: u16) -> u64 {
        self.sources.get(file as usize).map_or(0, Ahead::renamed)
    }

    /// True for a thread that a recorder started to be recorded.
    pub fn is_launched(&self, thread: Tid) -> bool {
        let source = self.sources.get(thread.file as usize);
        source.is_some_and(|source| source.launched().contains(&thread.tid))
    }

    /// Threads of the program that the first file was recorded of.
    pub fn recorded(&mut self, threads: &[i32]) {
        if let Some(first) = self.sources.first_mut() {
            first.recorded(threads);
        }
    }

    /// All of them.
    pub fn launched(&self) -> impl Iterator<Item = Tid> + '_ {
        let all = (0_u16..).zip(&self.sources);
        all.flat_map(|(file, source)| {
            source.launched().iter().map(move |tid| Tid { file, tid: *tid })
        })
    }

    /// What is left when all events have come.
    pub fn finish(self) -> (Vec<Read>, Clocks) {
        let files = self.files.into_iter().zip(self.sources);
        (files.map(|(file, source)| source.finish(file)).collect(), self.clocks)
    }
}
