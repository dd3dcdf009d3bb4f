//! Reading and unpacking pages on other threads, ahead of whoever wants the events.
//!
//! Unpacking and walking the pages costs as much as keeping the books of what is on
//! them, and needs nothing but the CPU's own pages. A thread serves several CPUs; it
//! does what it is asked for in the order it was asked, so none of them can be held up
//! by another whose blocks nobody takes.

use super::cpu::{Block, CpuPages};
use crate::input::RandomAccess;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Most blocks of an answer.
const BLOCKS: usize = 4;
/// Blocks of all CPUs' answers: about 10 MiB.
const ALL_BLOCKS: usize = 64;
/// Answers on their way: while one is used the next is made.
const WAITING: usize = 2;

/// Asks for blocks, giving back used ones.
struct Request {
    /// Which of the thread's CPUs.
    index: usize,
    used: Vec<Block>,
}

/// The blocks of one CPU.
pub struct Ahead {
    index: usize,
    requests: Option<Sender<Request>>,
    filled: Option<Receiver<Vec<Block>>>,
    ready: VecDeque<Block>,
    used: Vec<Block>,
}

impl Ahead {
    /// One with nothing to come.
    pub fn ended() -> Ahead {
        Ahead { index: 0, requests: None, filled: None, ready: VecDeque::new(), used: Vec::new() }
    }

    /// Replaces a used block by the next; false at the end.
    pub fn next(&mut self, block: &mut Block) -> bool {
        if self.ready.is_empty() {
            self.receive();
        }
        let Some(next) = self.ready.pop_front() else { return false };
        self.used.push(std::mem::replace(block, next));
        true
    }

    fn receive(&mut self) {
        // An empty answer is the end; so is a thread that is gone, whose panic joining tells.
        let answer = self.filled.as_ref().and_then(|filled| filled.recv().ok());
        self.ready.extend(answer.into_iter().flatten());
        if self.ready.is_empty() {
            (self.requests, self.filled) = (None, None);
            return;
        }
        let request = Request { index: self.index, used: std::mem::take(&mut self.used) };
        if let Some(requests) = &self.requests {
            // As above.
            let _ = requests.send(request);
        }
    }
}

/// Threads that fill blocks.
#[derive(Default)]
pub struct Crew {
    threads: Vec<JoinHandle<()>>,
}

struct Served {
    pages: CpuPages,
    filled: Sender<Vec<Block>>,
}

/// A thread to be: the CPUs that it serves, and how it is asked.
pub struct Hand {
    /// Blocks of an answer.
    blocks: usize,
    served: Vec<Served>,
    requests: (Sender<Request>, Receiver<Request>),
}

impl Hand {
    /// One without CPUs yet, of a trace of so many.
    pub fn new(cpus: usize) -> Hand {
        let blocks = (ALL_BLOCKS / cpus.max(1)).clamp(1, BLOCKS);
        Hand { blocks, served: Vec::new(), requests: channel() }
    }

    /// Takes a CPU on.
    pub fn take(&mut self, pages: CpuPages) -> Ahead {
        let (filled, blocks) = channel();
        let index = self.served.len();
        self.served.push(Served { pages, filled });
        for _ in 0..WAITING {
            // The receiver is a field of this struct, so the channel cannot be closed.
            let _ = self.requests.0.send(Request { index, used: Vec::new() });
        }
        Ahead {
            index,
            requests: Some(self.requests.0.clone()),
            filled: Some(blocks),
            ready: VecDeque::new(),
            used: Vec::new(),
        }
    }

    fn work(self, file: &RandomAccess) {
        let Hand { blocks: most, mut served, requests: (own, requests) } = self;
        // So that it ends when nobody else can ask.
        drop(own);
        while let Ok(Request { index, mut used }) = requests.recv() {
            let Some(Served { pages, filled }) = served.get_mut(index) else { continue };
            let mut blocks = Vec::with_capacity(most);
            while blocks.len() < most {
                let mut block = used.pop().unwrap_or_default();
                let more = pages.fill(file, &mut block);
                if !more && block.problems.is_empty() {
                    break;
                }
                if !more {
                    block.items.clear();
                }
                blocks.push(block);
                if !more {
                    break;
                }
            }
            // Whoever wanted them may have gone.
            let _ = filled.send(blocks);
        }
    }
}

impl Crew {
    /// Starts them.
    ///
    /// # Errors
    /// When a thread can't be started. What it was to serve then ends at once.
    pub fn start(&mut self, hands: Vec<Hand>, file: &Arc<RandomAccess>) -> io::Result<()> {
        for (index, hand) in hands.into_iter().enumerate() {
            let file = file.clone();
            let name = format!("trace-pages {index}");
            let thread = std::thread::Builder::new().name(name).spawn(move || hand.work(&file))?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Waits for their ends. All that they fill blocks for must be gone before.
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                // Not while another panic is on its way: that would abort.
                if !std::thread::panicking() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}
