// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Three devices are set up, masked, changed, unmasked and torn down, and the k-th call
//! into the kernel fails, for every k. Whatever it was, afterwards the table in the kernel is
//! the library's, judged by what arrives; each vector is as it was before or as it is
//! wanted; trying again completes it, without one interrupt lost; nothing leaks.
//!
//! A single test, because it counts the process's file descriptors.

mod common;
mod kernels;

use common::{msi_entries, open_fds, target, test_vm, Arrived, Spy, TestVm};
use msi_routes::measure::Shape;
use msi_routes::{
    enable, prepare, EventFd, FixedRoute, Kernel, Msi, Msix, Phase, Route, RouteError, Router,
    Source, Strategy,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const ERRNOS: [i32; 4] =
    [22 /* EINVAL */, 28 /* ENOSPC */, 16 /* EBUSY */, 24 /* EMFILE */];
const VECTORS: usize = 4;
const FIRST_GSI: u32 = 24;
const MSI_MESSAGE: (u64, u16) = (0xfee0_0000, 0x80);

/// Two devices with MSI-X, one of gates and one of eventfds, and one with MSI.
struct Lab<'a> {
    vm: &'a TestVm,
    spy: Arc<Spy>,
    router: Router,
    msix: Vec<Msix>,
    msi: Msi,
    /// Vectors (in the order of `vectors`) that raised an interrupt which has not arrived.
    waiting: BTreeSet<usize>,
}

fn external(router: &Router) -> Result<Source, RouteError> {
    Source::external(router.kernel().eventfd().map_err(RouteError::EventFd)?)
}

fn sources(router: &Router, make: impl Fn(&Router) -> Result<Source, RouteError>) -> Vec<Source> {
    let all = || (0..VECTORS).map(|_| make(router)).collect::<Result<Vec<_>, _>>();
    // The device could not be plugged; the user tries again.
    all().or_else(|_| all()).unwrap()
}

impl<'a> Lab<'a> {
    fn new(vm: &'a TestVm, spy: Arc<Spy>) -> Self {
        let router = Router::new(spy.clone(), FixedRoute::pc_defaults()).unwrap();
        let shape = Shape { devices: 2, vectors: VECTORS, vcpus: 1 };
        let gates = sources(&router, |router| Source::gate(router.kernel()));
        let mut msix = vec![
            Msix::new(gates, None).unwrap(),
            Msix::new(sources(&router, external), None).unwrap(),
        ];
        for (n, device) in msix.iter_mut().enumerate() {
            device.restore(&shape.state(n)).unwrap();
        }
        let mut msi =
            Msi::new(sources(&router, |router| Source::gate(router.kernel())), None).unwrap();
        let _ = msi.set_message(MSI_MESSAGE.0, MSI_MESSAGE.1);
        let _ = msi.set_control(1 | 2 << 4);
        Self { vm, spy, router, msix, msi, waiting: BTreeSet::new() }
    }

    fn vectors(&self) -> Vec<(&Source, Option<&Route>)> {
        let mut all = Vec::new();
        for device in &self.msix {
            all.extend((0..VECTORS).map(|n| (device.source(n).unwrap(), device.route(n))));
        }
        all.extend((0..VECTORS).map(|n| (self.msi.source(n).unwrap(), self.msi.route(n))));
        all
    }

    fn is_live(route: Option<&Route>) -> bool {
        route.is_some_and(|route| route.phase() == Phase::Live)
    }

    /// Makes routes as registers say; what waited arrives with it.
    fn sync(&mut self, strategy: Strategy) -> bool {
        let done = enable(&self.router, &mut self.msix, strategy);
        let mut batch = self.router.batch();
        self.msi.sync(&mut batch).unwrap();
        let msi = batch.commit();
        let ok = done.is_ok() && msi.is_ok_and(|report| report.failures.is_empty());
        self.check();
        ok
    }

    /// Runs a stage, again if the fault hit it: there is one fault only.
    fn stage(&mut self, what: &str, mut change: impl FnMut(&mut Self) -> bool) {
        assert!(change(self) || change(self), "{what} failed twice");
    }

    fn check(&mut self) {
        let vectors = self.vectors();
        let came = |n: &&usize| Self::is_live(vectors[**n].1);
        let came: Vec<usize> = self.waiting.iter().filter(came).copied().collect();
        let at = |n: &usize| target(vectors[*n].1.unwrap().message());
        let expected: Arrived = came.iter().map(at).collect();
        assert_eq!(self.vm.take(&expected), expected, "what waited");
        // One by one, so that nothing hides behind another's arrival.
        let mut waits = Vec::new();
        for (n, (source, route)) in vectors.iter().enumerate() {
            let live = Self::is_live(*route);
            let expected: Arrived =
                live.then(|| target(route.unwrap().message())).into_iter().collect();
            source.raise().unwrap();
            assert_eq!(self.vm.take(&expected), expected, "vector {n}");
            waits.extend((!live).then_some(n));
        }
        came.iter().for_each(|n| {
            self.waiting.remove(n);
        });
        self.waiting.extend(waits);
        if self.spy.commits.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            self.check_table();
        }
    }

    /// The kernel's table, by what arrives when each GSI is pressed.
    fn check_table(&self) {
        let known = msi_entries(&self.router.entries());
        assert_eq!(known, msi_entries(&self.spy.table.lock().unwrap()));
        let past = FIRST_GSI + 3 * VECTORS as u32 + 2;
        let fd = EventFd::new(0o4000).unwrap();
        for gsi in FIRST_GSI..past {
            let expected: Arrived =
                known.iter().filter(|(g, _)| *g == gsi).map(|(_, to)| *to).collect();
            self.vm.vm.fd().attach(&fd, gsi).unwrap();
            fd.write(1).unwrap();
            self.vm.vm.fd().detach(&fd, gsi).unwrap();
            // Vector 0 is where reserved routes lead; no APIC takes it.
            assert_eq!(self.vm.take(&expected), expected, "GSI {gsi}");
        }
    }

    fn set_masks(&mut self, masked: bool) {
        for device in &mut self.msix {
            for n in [0, 2] {
                let _ = device.write_table(16 * n + 12, &u32::from(masked).to_le_bytes());
            }
        }
        let _ = self.msi.set_mask(if masked { 0b101 } else { 0 });
    }

    fn run(&mut self, strategy: Strategy) {
        let prepared = |lab: &mut Self| prepare(&lab.router, &mut lab.msix, strategy).is_ok();
        self.stage("prepare", prepared);
        self.stage("enable", |lab| lab.sync(strategy));
        self.set_masks(true);
        self.stage("mask", |lab| lab.sync(strategy));
        for device in &mut self.msix {
            // While masked: to the APIC vector 16 further on.
            let data = device.state().table[0][2] + 16;
            let _ = device.write_table(8, &data.to_le_bytes());
        }
        self.set_masks(false);
        self.stage("unmask with another message", |lab| lab.sync(strategy));
        let _ = self.msix[1].set_control(0);
        let _ = self.msi.set_control(0);
        self.stage("disable", |lab| lab.sync(strategy));
        let _ = self.msix[1].set_control(1 << 15);
        let _ = self.msi.set_control(1 | 2 << 4);
        self.stage("enable again", |lab| lab.sync(strategy));
        assert!(self.waiting.is_empty());
        let live = |(_, route): &(&Source, Option<&Route>)| Self::is_live(*route);
        assert!(self.vectors().iter().all(live));
    }
}

/// How many calls there were.
fn scenario(vm: &TestVm, strategy: Strategy, fail_at: usize, errno: i32) -> usize {
    let fds = open_fds();
    let spy = Spy::new(vm.kernel(), fail_at, errno);
    let mut lab = Lab::new(vm, spy.clone());
    lab.run(strategy);
    let router = lab.router.clone();
    drop(lab);
    // A failed one is told apart: nothing to do but to try again.
    let swept = router.sweep().or_else(|_| router.sweep()).unwrap();
    let swept = if swept.counts.routes == 40 { swept } else { router.sweep().unwrap() };
    assert_eq!((swept.counts.routes, router.msi_routes()), (40, 0));
    assert_eq!(spy.attached.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(msi_entries(&spy.table.lock().unwrap()).len(), 0);
    drop(router);
    let calls = spy.calls();
    drop(spy);
    assert_eq!(open_fds(), fds);
    calls
}

#[test]
fn whatever_call_fails_the_tables_agree_and_nothing_leaks() {
    let Some(vm) = test_vm(1) else { return };
    let mut runs = 0;
    for strategy in Strategy::ALL {
        let calls = scenario(&vm, strategy, usize::MAX, 0);
        for k in 0..calls {
            let all = strategy == Strategy::PerVm;
            let errnos = if all { &ERRNOS[..] } else { &ERRNOS[k % 4..k % 4 + 1] };
            for &errno in errnos {
                let after = scenario(&vm, strategy, k, errno);
                assert!(after > k, "{strategy}: call {k} was not reached");
                runs += 1;
            }
        }
        println!("{strategy}: each of {calls} calls failed once");
    }
    println!("{runs} runs");
}
