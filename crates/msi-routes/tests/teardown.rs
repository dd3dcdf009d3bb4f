// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Devices of many vectors go away: their eventfds are detached, which waits for the kernel
//! each time, while others commit.

use crate::common;

use common::{test_vm, Null};
use msi_routes::{Errno, EventFd, Kernel, MsiMessage, Phase, Route, Router, Source};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

fn external() -> Source {
    Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap()
}

fn add(router: &Router, count: usize) -> Vec<Route> {
    let mut batch = router.batch();
    let add = |n| batch.add(MsiMessage::x86(0, 32 + (n % 200) as u8), external()).unwrap();
    let routes = (0..count).map(add).collect();
    batch.commit().unwrap().complete().unwrap();
    routes
}

fn remove(router: &Router, routes: &[Route]) -> msi_routes::Report {
    let mut batch = router.batch();
    routes.iter().for_each(|route| batch.remove(route).unwrap());
    batch.commit().unwrap()
}

/// Looks, at each detach, whether another thread can commit meanwhile.
struct Watching {
    router: OnceLock<Router>,
    detached: AtomicUsize,
    failing: AtomicUsize,
}

impl Kernel for Watching {
    fn route_limit(&self) -> usize {
        4096
    }

    fn set_routing(&self, _: &msi_routes::Routing) -> Result<(), Errno> {
        Ok(())
    }

    fn attach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn detach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        let (router, (done, wait)) = (self.router.get().unwrap().clone(), channel());
        std::thread::spawn(move || {
            let mut batch = router.batch();
            let _route = batch.add_masked(MsiMessage::x86(0, 33), external()).unwrap();
            batch.commit().unwrap().complete().unwrap();
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(60)).expect("a commit waits for a detach");
        if self.failing.fetch_sub(1, SeqCst) == 1 {
            return Err(Errno::new(libc::EIO));
        }
        self.detached.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[test]
fn others_commit_while_irqfds_are_detached() {
    for threads in [1, 4] {
        let (router, detached) = (OnceLock::new(), AtomicUsize::new(0));
        let kernel = Arc::new(Watching { router, detached, failing: AtomicUsize::new(7) });
        let router = Router::new(kernel.clone(), []).unwrap();
        router.set_detach_threads(threads);
        kernel.router.set(router.clone()).unwrap();
        let routes = add(&router, 64);
        // One fails and is named; the others are gone.
        let report = remove(&router, &routes);
        assert_eq!((report.counts.detached, report.failures.len()), (63, 1));
        assert_eq!(report.failures[0].route.as_ref().unwrap().phase(), Phase::Live);
        assert_eq!(kernel.detached.load(SeqCst), 63);
        assert_eq!(routes.iter().filter(|route| route.phase() == Phase::Gone).count(), 63);
        let left = report.failures[0].route.clone().unwrap();
        assert_eq!(remove(&router, &[left]).counts.detached, 1);
    }
}

/// Of changes to one route the last one counts, ahead of the lock as well.
#[test]
fn what_is_taken_back_is_not_detached() {
    let router = Router::new(Null(4096), []).unwrap();
    let routes = add(&router, 3);
    let mut batch = router.batch();
    batch.remove(&routes[0]).unwrap();
    batch.unmask(&routes[0]).unwrap();
    batch.mask(&routes[1]).unwrap();
    batch.set_message(&routes[1], MsiMessage::x86(0, 99)).unwrap();
    let counts = batch.commit().unwrap().complete().unwrap();
    let phases = routes.iter().map(Route::phase).collect::<Vec<_>>();
    assert_eq!((counts.detached, counts.attached), (1, 0));
    assert_eq!(phases, [Phase::Live, Phase::Masked, Phase::Live]);
}

/// The usual soft limit of open files is 1024.
fn allow_files(wanted: u64) {
    // SAFETY: plain data, and valid pointers to it.
    unsafe {
        let mut now: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut now), 0);
        now.rlim_cur = now.rlim_cur.max(wanted.min(now.rlim_max));
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &now), 0);
    }
}

/// How long others wait, on this host: told, and not judged, as others use its CPUs.
#[test]
fn unplugging_2048_vectors() {
    let Some(vm) = test_vm(1) else { return };
    allow_files(3000);
    for threads in [1, 16] {
        let router = vm.router();
        router.set_detach_threads(threads);
        let routes = add(&router, 2048);
        let begin = Instant::now();
        let (longest, commits, took) = std::thread::scope(|scope| {
            let unplug = scope.spawn(|| {
                let report = remove(&router, &routes).complete().unwrap();
                assert_eq!((report.detached, report.commits), (2048, 1));
                begin.elapsed()
            });
            let (mut longest, mut commits) = (Duration::ZERO, 0);
            while !unplug.is_finished() {
                // A commit that asks the kernel nothing: the wait is for the lock.
                let start = Instant::now();
                router.batch().commit().unwrap().complete().unwrap();
                longest = longest.max(start.elapsed());
                commits += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            (longest, commits, unplug.join().unwrap())
        });
        println!("2048 vectors, {threads} threads: {took:?}; of {commits} others the longest wait {longest:?}");
        assert!(commits > 0 && router.msi_routes() == 0);
    }
}

/// A VM that notes when it was last asked to detach, and what its tables took.
struct Timed {
    vm: common::VmKernel,
    /// By the clock, and by this thread's CPU time.
    detached: Mutex<Option<(Instant, Duration)>>,
    tables: Mutex<Duration>,
}

/// CPU time of this thread: what others do on its CPU is not in it.
fn cpu() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) }, 0);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Kernel for Timed {
    fn route_limit(&self) -> usize {
        self.vm.route_limit()
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        let begin = Instant::now();
        let done = self.vm.set_routing(routes);
        *self.tables.lock().unwrap() += begin.elapsed();
        done
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.vm.attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        let done = self.vm.detach(eventfd, gsi);
        *self.detached.lock().unwrap() = Some((Instant::now(), cpu()));
        done
    }
}

/// What the lock is held for: from the last detach, which comes before it, to the commit's end.
/// Told, and not judged.
#[test]
fn what_2048_removed_vectors_hold_the_table_for() {
    let Some(vm) = test_vm(1) else { return };
    allow_files(3000);
    let kernel =
        Arc::new(Timed { vm: vm.kernel(), detached: Mutex::default(), tables: Mutex::default() });
    let router = Router::new(kernel.clone(), []).unwrap();
    for _ in 0..5 {
        let routes = add(&router, 2048);
        *kernel.tables.lock().unwrap() = Duration::ZERO;
        remove(&router, &routes).complete().unwrap();
        let (clock, used) = (Instant::now(), cpu());
        let (last, before) = kernel.detached.lock().unwrap().expect("detached");
        println!(
            "2048 vectors: at most {:?} with the table held ({:?} of CPU), {:?} of it in the kernel",
            clock - last,
            used - before,
            kernel.tables.lock().unwrap()
        );
        assert_eq!(router.msi_routes(), 0);
    }
}
