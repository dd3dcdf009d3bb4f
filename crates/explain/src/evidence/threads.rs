//! The threads of all files.
//!
//! Several questions of each event are about the same few threads. Where a thread was found last is
//! remembered by the low bits of its id, so that most questions cost a comparison and no hash.

use super::thread::Thread;
use crate::moment::Tid;
use std::cell::Cell;
use vmeter_trace::hash::FastMap;

/// Most threads that are told apart.
const MOST: usize = 1 << 15;
/// Segments kept of all threads together.
const SEGMENTS: usize = 1 << 19;
/// Fewest and most of one thread.
const ROOM: (usize, usize) = (16, 4096);
/// Threads whose place is remembered.
const RECENT: usize = 256;

/// The threads, in the order in which they were seen first.
#[derive(Debug)]
pub struct Threads {
    list: Vec<(Tid, Thread)>,
    index: FastMap<Tid, u32>,
    recent: [Cell<u32>; RECENT],
    room: usize,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            list: Vec::new(),
            index: FastMap::default(),
            recent: [const { Cell::new(0) }; RECENT],
            room: ROOM.1,
        }
    }
}

impl Threads {
    #[inline]
    fn find(&self, tid: Tid) -> Option<usize> {
        let recent = &self.recent[tid.tid as usize % RECENT];
        let guess = recent.get();
        if self.list.get(guess as usize).is_some_and(|(known, _)| *known == tid) {
            return Some(guess as usize);
        }
        let found = *self.index.get(&tid)?;
        recent.set(found);
        Some(found as usize)
    }

    /// A thread.
    #[inline]
    pub fn get(&self, tid: &Tid) -> Option<&Thread> {
        let at = self.find(*tid)?;
        self.list.get(at).map(|(_, thread)| thread)
    }

    /// A thread to change.
    #[inline]
    pub fn get_mut(&mut self, tid: &Tid) -> Option<&mut Thread> {
        let at = self.find(*tid)?;
        self.list.get_mut(at).map(|(_, thread)| thread)
    }

    /// A thread to change, which begins now if it is not known; none for the idle thread and beyond
    /// the limit.
    #[inline]
    pub fn or_begin(&mut self, tid: Tid, now: u64) -> Option<&mut Thread> {
        if tid.tid <= 0 {
            return None;
        }
        let at = match self.find(tid) {
            Some(at) => at,
            None => self.begin(tid, now)?,
        };
        self.list.get_mut(at).map(|(_, thread)| thread)
    }

    #[cold]
    fn begin(&mut self, tid: Tid, now: u64) -> Option<usize> {
        let at = self.list.len();
        if at >= MOST {
            return None;
        }
        self.list.push((tid, Thread::new(now)));
        self.index.insert(tid, at as u32);
        self.room = (SEGMENTS / self.list.len()).clamp(ROOM.0, ROOM.1);
        Some(at)
    }

    /// Segments that are kept of a thread.
    #[inline]
    pub fn room(&self) -> usize {
        self.room
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Tid, &Thread)> {
        self.list.iter().map(|(tid, thread)| (tid, thread))
    }

    /// All of them, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Tid, &mut Thread)> {
        self.list.iter_mut().map(|(tid, thread)| (&*tid, thread))
    }
}
