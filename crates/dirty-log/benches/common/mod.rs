// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the benches compare: our bitmap, vm-memory's, and an exchange loop over words.

use criterion::Criterion;
use dirty_log::SummaryBitmap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vm_memory::bitmap::AtomicBitmap;

/// Pages of the 3.76 GB slot of the published measurement.
pub const PAGES: usize = 917_248;
pub const PAGE: usize = 4096;

/// One contender: marks a page, and harvests all into a checksum of what is dirty.
pub trait Contender: Sync {
    const NAME: &'static str;
    fn with_pages(pages: usize) -> Self;
    fn set(&self, page: usize);
    /// Takes all dirty pages and looks at each word that has some.
    fn take(&self) -> u64;
}

/// Adds a dirty word to a checksum.
#[inline]
pub fn visit(sum: u64, index: usize, word: u64) -> u64 {
    sum.wrapping_add(word ^ index as u64)
}

impl Contender for SummaryBitmap {
    const NAME: &'static str = "SummaryBitmap";

    fn with_pages(pages: usize) -> Self {
        SummaryBitmap::new(pages * PAGE, NonZeroUsize::new(PAGE).unwrap())
    }

    #[inline]
    fn set(&self, page: usize) {
        self.set_bit(page);
    }

    #[inline]
    fn take(&self) -> u64 {
        let mut sum = 0;
        self.harvest_words(|i, w| sum = visit(sum, i, w));
        sum
    }
}

/// vm-memory's `get_and_reset`.
impl Contender for AtomicBitmap {
    const NAME: &'static str = "AtomicBitmap";

    fn with_pages(pages: usize) -> Self {
        AtomicBitmap::new(pages * PAGE, NonZeroUsize::new(PAGE).unwrap())
    }

    #[inline]
    fn set(&self, page: usize) {
        self.set_bit(page);
    }

    #[inline]
    fn take(&self) -> u64 {
        let words = self.get_and_reset();
        let dirty = words.iter().enumerate().filter(|(_, &w)| w != 0);
        dirty.fold(0, |sum, (i, &w)| visit(sum, i, w))
    }
}

/// The obvious improvement on it: look first, exchange what is not 0, allocate nothing.
pub struct SkipZero(Vec<AtomicU64>);

impl Contender for SkipZero {
    const NAME: &'static str = "skip-zero exchange";

    fn with_pages(pages: usize) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn set(&self, page: usize) {
        self.0[page / 64].fetch_or(1 << (page % 64), Ordering::SeqCst);
    }

    #[inline]
    fn take(&self) -> u64 {
        let mut sum = 0;
        for (i, word) in self.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) != 0 {
                sum = visit(sum, i, word.swap(0, Ordering::SeqCst));
            }
        }
        sum
    }
}

/// Which pages are dirty before a harvest.
pub fn loads() -> [(&'static str, Vec<usize>); 4] {
    let spread = |count: usize| (0..count).map(|i| i * (PAGES / count)).collect();
    [
        ("clean", Vec::new()),
        ("10 pages", spread(10)),
        ("1 % spread", spread(PAGES / 100)),
        ("100 %", (0..PAGES).collect()),
    ]
}

/// Pages in an order without pattern, the same each time.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed | 1;
    for i in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

/// Who marks what, by two threads at once.
pub struct Pattern {
    pub name: &'static str,
    pub orders: [Vec<usize>; 2],
    /// Clean before each round; else all is dirty already.
    pub fresh: bool,
}

/// Marks of each thread in a round: nearly half of the slot.
const MARKS: usize = 400_000;

pub fn patterns() -> Vec<Pattern> {
    let random = [7, 11].map(|seed| {
        let mut order = shuffled(PAGES, seed);
        order.truncate(MARKS);
        order
    });
    let halves = [0, PAGES / 2].map(|first| (first..first + MARKS).collect());
    let woven = [0, 1].map(|first| (first..2 * MARKS).step_by(2).collect());
    let one = [vec![5; MARKS], vec![5; MARKS]];
    let pattern =
        |name, orders: &[Vec<usize>; 2], fresh| Pattern { name, orders: orders.clone(), fresh };
    vec![
        pattern("random, from clean", &random, true),
        pattern("random, dirty already", &random, false),
        pattern("in order, a half each, from clean", &halves, true),
        pattern("in order, a half each, dirty already", &halves, false),
        pattern("in order, every other page, from clean", &woven, true),
        pattern("one page over and over", &one, false),
    ]
}

/// This thread's time on a CPU, ns: what the host does in between does not count.
pub fn cpu_time() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Keeps this thread on the CPU with this place among those allowed: new threads start on
/// one, and marks are over before the scheduler parts them.
pub fn stay_on(place: usize) {
    // SAFETY: a CPU set is a bit array for which all zeroes is valid; both calls are given
    // its size and stay within it.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&allowed);
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let mut cpus =
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        if let Some(cpu) = cpus.nth(place) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            libc::sched_setaffinity(0, size, &one);
        }
    }
}

/// CPU time of a mark when a thread for each order marks at once, ns: the slowest thread's.
pub fn marks<C: Contender>(contender: &C, orders: &[Vec<usize>]) -> f64 {
    let ready = AtomicU64::new(0);
    let run = &|place: usize, order: &Vec<usize>| {
        stay_on(place);
        contender.set(order[0]);
        // Not a Barrier: one that wakes the other after the first has begun measures less
        // than two at once.
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < orders.len() as u64 {
            std::hint::spin_loop();
        }
        let begin = cpu_time();
        order.iter().for_each(|&page| contender.set(page));
        (cpu_time() - begin) / order.len() as f64
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = orders
            .iter()
            .enumerate()
            .map(|(place, order)| scope.spawn(move || run(place, order)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}

/// One harvest, visiting each dirty word, waiting for writers included.
pub fn bench_harvest<C: Contender>(criterion: &mut Criterion) {
    let bitmap = C::with_pages(PAGES);
    for (load, dirty) in loads() {
        let mut group = criterion.benchmark_group(format!("harvest/{load}"));
        group.bench_function(C::NAME, |bencher| {
            if dirty.is_empty() {
                bitmap.take();
                return bencher.iter(|| bitmap.take());
            }
            bencher.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    dirty.iter().for_each(|&page| bitmap.set(page));
                    let start = Instant::now();
                    criterion::black_box(bitmap.take());
                    total += start.elapsed();
                }
                total
            });
        });
    }
}

/// One mark, by two threads at once: the time of the slower one, for each page marked.
pub fn bench_mark<C: Contender>(criterion: &mut Criterion) {
    let bitmap = C::with_pages(PAGES);
    for pattern in patterns() {
        let mut group = criterion.benchmark_group(format!("mark/{}", pattern.name));
        group.bench_function(C::NAME, |bencher| {
            bencher.iter_custom(|rounds| {
                let ns: f64 = (0..rounds)
                    .map(|_| {
                        if pattern.fresh {
                            bitmap.take();
                        }
                        marks(&bitmap, &pattern.orders)
                    })
                    .sum();
                Duration::from_nanos(ns as u64)
            });
        });
    }
}
