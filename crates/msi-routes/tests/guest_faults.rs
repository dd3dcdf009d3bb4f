// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a guest can write that KVM refuses, what a reset forgets, and what a state may be
//! loaded into.

use crate::kernels;

use kernels::{msi_entries, Null, Spy};
use msi_routes::{
    Errno, EventFd, FixedRoute, Kernel, Msi, MsiMessage, Msix, MsixState, Phase, Route, Router,
    Source, Step,
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;

/// Refuses a table with an MSI route that `bad` says is one.
struct Picky {
    bad: fn(u64, u32) -> bool,
    tables: AtomicUsize,
}

impl Picky {
    fn new(bad: fn(u64, u32) -> bool) -> Arc<Self> {
        Arc::new(Self { bad, tables: AtomicUsize::new(0) })
    }

    fn router(bad: fn(u64, u32) -> bool) -> (Arc<Self>, Router) {
        let kernel = Self::new(bad);
        (kernel.clone(), Router::with_first_gsi(kernel, [], 0).unwrap())
    }

    fn tables(&self) -> usize {
        self.tables.swap(0, SeqCst)
    }
}

impl Kernel for Picky {
    fn route_limit(&self) -> usize {
        4096
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.tables.fetch_add(1, SeqCst);
        let bad = routes.as_ref().as_slice().iter().any(|e| {
            // SAFETY: plain data; of an irqchip's pin the irqchip and the pin are an address.
            let msi = unsafe { e.u.msi };
            (self.bad)(u64::from(msi.address_hi) << 32 | u64::from(msi.address_lo), msi.data)
        });
        if bad {
            return Err(Errno::new(libc::EINVAL));
        }
        Ok(())
    }

    fn attach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn detach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn signals(&self) -> bool {
        true
    }

    fn signal(&self, _: MsiMessage) -> Result<(), Errno> {
        Ok(())
    }
}

fn gate(router: &Router) -> Source {
    Source::gate(router.kernel()).unwrap()
}

/// A batch of `count` routes, with these messages at these places.
fn add_all(router: &Router, count: u32, bad: &[(usize, MsiMessage)]) -> (Vec<Route>, usize) {
    let mut batch = router.batch();
    let routes: Vec<Route> = (0..count)
        .map(|n| {
            let ordinary = MsiMessage { data: n, ..MsiMessage::x86(0, 0) };
            let bad = bad.iter().find(|(at, _)| *at == n as usize);
            let message = bad.map_or(ordinary, |(_, message)| *message);
            batch.add(message, gate(router)).unwrap()
        })
        .collect();
    let report = batch.commit().unwrap();
    let failed: Vec<u32> = report.failures.iter().map(|f| f.gsi).collect();
    assert_eq!(failed.len(), bad.len(), "{:?}", report.failures);
    for (failure, route) in bad.iter().map(|(at, message)| (message, &routes[*at])) {
        assert!(failed.contains(&route.gsi()) && route.phase() == Phase::Gone);
        let named = |f: &msi_routes::Failure| f.step == Step::Message(*failure);
        assert!(report.failures.iter().any(named));
    }
    let live = routes.iter().filter(|route| route.phase() == Phase::Live).count();
    assert_eq!((live, router.msi_routes()), (routes.len() - bad.len(), live));
    assert_eq!(msi_entries(&router.entries()).len(), live);
    (routes, report.counts.commits)
}

#[test]
fn one_bad_message_of_520_fails_alone() {
    // What KVM refuses of an x2APIC guest is tried last.
    let x2apic = MsiMessage { address: 0x1_fee0_0000, data: 7, devid: None };
    for at in [0, 1, 259, 260, 518, 519] {
        let (kernel, router) = Picky::router(|address, _| address >> 32 & 0xff != 0);
        let (_, commits) = add_all(&router, 520, &[(at, x2apic)]);
        assert_eq!((kernel.tables(), commits), (2, 2), "at {at}");
    }
    // What is unlike the others, and nobody could know: by halves.
    let bad = MsiMessage { data: 0xbad, ..MsiMessage::x86(0, 0) };
    let found = |at, bad, refused: fn(u64, u32) -> bool| {
        let (kernel, router) = Picky::router(refused);
        let (_, commits) = add_all(&router, 520, &[(at, bad)]);
        assert_eq!(kernel.tables(), commits);
        commits
    };
    let most = (0..520).map(|at| found(at, bad, |_, data| data == 0xbad)).max();
    println!("one bad message of 520, unlike the others: at most {most:?} commits");
    assert!(most <= Some(11), "{most:?}");
    // One that only its destination tells: 2^9 is less than 520, so a few take a call more.
    let calls: Vec<usize> = (0..520)
        .map(|at| {
            let bad = MsiMessage { data: at as u32, ..MsiMessage::x86(0xff, 0) };
            found(at, bad, |address, _| address >> 12 & 0xff == 0xff)
        })
        .collect();
    let more = calls.iter().filter(|calls| **calls > 11).count();
    println!("like the others: at most {:?} commits, {more} times over 11", calls.iter().max());
    assert!(calls.iter().all(|calls| *calls <= 12) && more <= 16, "{more}");
}

#[test]
fn several_bad_messages_fail_and_a_bad_guest_does_not_make_calls_without_end() {
    let bad = |at| (at, MsiMessage { data: 0xbad, ..MsiMessage::x86(0, 0) });
    let (_, router) = Picky::router(|_, data| data == 0xbad);
    let (_, commits) = add_all(&router, 64, &[bad(3), bad(4), bad(63)]);
    assert!(commits <= 25, "{commits}");
    let (_, router) = Picky::router(|_, data| data == 0xbad);
    add_all(&router, 1, &[bad(0)]);
    let all: Vec<_> = (0..500).map(bad).collect();
    let (kernel, router) = Picky::router(|_, data| data == 0xbad);
    add_all(&router, 500, &all);
    let tables = kernel.tables();
    assert!(tables <= 64, "{tables} tables");
}

#[test]
fn a_vector_whose_new_message_is_refused_is_as_it_was() {
    let (_, router) = Picky::router(|_, data| data == 0xbad);
    let (routes, _) = add_all(&router, 4, &[]);
    let mut batch = router.batch();
    batch.set_message(&routes[0], MsiMessage { data: 0xbad, ..routes[0].message() }).unwrap();
    batch.set_message(&routes[1], MsiMessage { data: 0x77, ..routes[1].message() }).unwrap();
    batch.mask(&routes[0]).unwrap();
    batch.remove(&routes[2]).unwrap();
    let report = batch.commit().unwrap();
    assert_eq!(report.failures.len(), 1);
    assert_eq!((routes[0].phase(), routes[0].message().data), (Phase::Live, 0));
    assert_eq!((routes[1].message().data, routes[2].phase()), (0x77, Phase::Gone));
    let Source::Gate(gate) = routes[0].source() else { unreachable!() };
    gate.fire();
    assert!(!gate.pending(), "it is open again");
    let entries: Vec<u8> = msi_entries(&router.entries()).into_iter().map(|e| e.1 .1).collect();
    assert_eq!(entries, [0, 0x77, 3]);
}

fn message(data: u32) -> MsiMessage {
    MsiMessage { data, ..MsiMessage::x86(0, 0) }
}

/// The entries of a GSI, by their data.
fn data_of(router: &Router, gsi: u32) -> Vec<u32> {
    let entries = router.entries();
    // SAFETY: plain data.
    entries.iter().filter(|e| e.gsi == gsi).map(|e| unsafe { e.u.msi.data }).collect()
}

#[test]
fn a_bad_fixed_route_fails_alone_and_is_named() {
    let pin = |gsi, data| FixedRoute::msi(gsi, message(data));
    let no_pin = |gsi| FixedRoute::irqchip(gsi, 7, 99);
    let refused: fn(u64, u32) -> bool = |address, data| data == 0xbad || address == 99 << 32 | 7;
    let set = |router: &Router, bad: u32, route: FixedRoute| {
        let mut batch = router.batch();
        let handles: Vec<Route> =
            (0..30).map(|n| batch.add(message(n), gate(router)).unwrap()).collect();
        for gsi in 0..24 {
            batch.set_fixed(gsi, [if gsi == bad { route } else { pin(gsi, 0x80 + gsi) }]).unwrap();
        }
        // One beside those that were there.
        batch.add_fixed(FixedRoute::irqchip(90, 0, 3)).unwrap();
        batch.add_fixed(FixedRoute::irqchip(90, 1, 3)).unwrap();
        (batch.commit().unwrap(), handles)
    };
    for bad in 0..24 {
        for (route, step) in
            [(pin(bad, 0xbad), Step::Message(message(0xbad))), (no_pin(bad), Step::Entry)]
        {
            let kernel = Picky::new(refused);
            let router =
                Router::with_first_gsi(kernel.clone(), (0..24).map(|n| pin(n, n)), 0).unwrap();
            let (report, handles) = set(&router, bad, route);
            let [failure] = &report.failures[..] else { panic!("{:?}", report.failures) };
            assert_eq!((failure.gsi, failure.step, failure.route.is_none()), (bad, step, true));
            let said = failure.to_string();
            let named = [format!("GSI {bad} "), format!("GSI {bad}:")];
            assert!(named.iter().any(|gsi| said.contains(gsi)), "{said}");
            // What was refused is as it was; all else is there, once.
            for gsi in 0..24 {
                let data = if gsi == bad { gsi } else { 0x80 + gsi };
                assert_eq!(data_of(&router, gsi), [data], "GSI {gsi} with {bad} bad");
            }
            assert_eq!(data_of(&router, 90).len(), 2);
            assert!(handles.iter().all(|route| route.phase() == Phase::Live));
            assert_eq!((router.entries().len(), router.free()), (56, 4096 - 56));
            let tables = kernel.tables();
            assert!(tables == report.counts.commits && tables <= 8, "{tables} with {bad} bad");
            // And it can be changed again, and taken out.
            let mut batch = router.batch();
            batch.set_fixed(bad, [pin(bad, 0x55)]).unwrap();
            batch.commit().unwrap().complete().unwrap();
            assert_eq!(data_of(&router, bad), [0x55]);
            let mut batch = router.batch();
            batch.remove_fixed(bad).unwrap();
            batch.commit().unwrap().complete().unwrap();
            assert_eq!(router.free(), 4096 - 55);
        }
    }
    // Nothing but a bad one.
    let (_, router) = Picky::router(refused);
    let mut batch = router.batch();
    batch.add_fixed(pin(3, 0xbad)).unwrap();
    let report = batch.commit().unwrap();
    assert_eq!((report.failures.len(), router.entries().len(), router.free()), (1, 0, 4096));
}

#[test]
fn changes_of_one_gsi_by_nested_batches_are_one() {
    let (_, router) = Picky::router(|_, data| data == 0xbad);
    let pin = |data| FixedRoute::msi(4, message(data));
    let mut batch = router.batch();
    batch.set_fixed(4, [pin(1)]).unwrap();
    let bad = batch.add(message(0xbad), gate(&router)).unwrap();
    let mut inner = batch.nested();
    inner.set_fixed(4, [pin(2)]).unwrap();
    inner.commit();
    let report = batch.commit().unwrap();
    assert_eq!((report.failures.len(), bad.phase()), (1, Phase::Gone));
    assert_eq!((data_of(&router, 4), router.free()), (vec![2], 4095));
}

#[test]
fn one_bad_message_of_those_that_are_promoted_fails_alone() {
    let lazy = |count: u32, bad: fn(u32) -> bool| {
        let (kernel, router) = Picky::router(|_, data| data == 0xbad);
        router.set_lazy(true);
        let mut batch = router.batch();
        let data = |n| if bad(n) { 0xbad } else { n };
        let routes: Vec<Route> =
            (0..count).map(|n| batch.add(message(data(n)), gate(&router)).unwrap()).collect();
        batch.commit().unwrap().complete().unwrap();
        assert!(routes.iter().all(Route::is_signalled) && kernel.tables() == 0);
        (kernel, router, routes)
    };
    let (kernel, router, routes) = lazy(520, |n| n == 300);
    for again in [false, true] {
        let report = router.promote().unwrap();
        let [failure] = &report.failures[..] else { panic!("{:?}", report.failures) };
        assert_eq!(failure.step, Step::Message(message(0xbad)));
        assert!(failure.route.as_ref().is_some_and(|route| route.source().clone().raise().is_ok()));
        let (tables, bound) = (kernel.tables(), if again { 2 } else { 11 });
        assert!(tables == report.counts.commits && tables <= bound, "{tables}");
        let signalled: Vec<usize> = (0..520).filter(|&n| routes[n].is_signalled()).collect();
        assert_eq!((signalled, router.msi_routes()), (vec![300], 519));
        assert_eq!(msi_entries(&router.entries()).len(), 519);
        assert!(routes.iter().all(|route| route.phase() == Phase::Live));
    }
    let mut batch = router.batch();
    batch.set_message(&routes[300], message(0x300)).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!(router.promote().unwrap().complete().unwrap().commits, 1);
    assert!(!routes[300].is_signalled());
    // All of them, and many: nothing is changed, in a bounded number of tables.
    let (kernel, router, routes) = lazy(200, |_| true);
    assert_eq!(router.promote().unwrap().failures.len(), 200);
    assert!(kernel.tables() <= 64 && routes.iter().all(Route::is_signalled));
    assert_eq!((router.msi_routes(), router.entries().len()), (0, 0));
}

#[test]
fn an_existing_vector_whose_attach_fails_keeps_its_message() {
    let spy = Spy::new(Null(4096), usize::MAX, libc::ENOSPC);
    let router = Router::new(spy.clone(), []).unwrap();
    let external = Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
    let mut batch = router.batch();
    let route = batch.add_masked(MsiMessage::x86(0, 1), external).unwrap();
    batch.commit().unwrap().complete().unwrap();
    for (failures, message) in [(1, 1), (2, 2)] {
        // The table is taken, the attach fails, and perhaps the table as it was, too.
        spy.fail_next(1, failures);
        let mut batch = router.batch();
        batch.set_message(&route, MsiMessage::x86(0, 2)).unwrap();
        batch.unmask(&route).unwrap();
        let report = batch.commit().unwrap();
        assert_eq!((report.failures.len(), route.phase()), (1, Phase::Masked));
        assert_eq!(route.message().data, message);
        let kernels = msi_entries(&spy.table.lock().unwrap());
        assert_eq!(kernels, [(24, (0, message as u8))].into());
        assert_eq!(kernels, msi_entries(&router.entries()));
    }
}

/// An IOMMU before what a spy sees.
struct Iommu<F> {
    spy: Arc<Spy>,
    translate: F,
}

impl<F> Kernel for Iommu<F>
where
    F: Fn(MsiMessage) -> Result<MsiMessage, Errno> + Send + Sync,
{
    fn route_limit(&self) -> usize {
        self.spy.route_limit()
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.spy.set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.spy.attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.spy.detach(eventfd, gsi)
    }

    fn translate(&self, message: MsiMessage) -> Result<MsiMessage, Errno> {
        (self.translate)(message)
    }
}

#[test]
fn messages_are_translated_on_their_way_into_the_table() {
    let spy = Spy::new(Null(4096), usize::MAX, 0);
    // Destinations above 255 go into the address's upper half, and one is refused.
    let translate = |message: MsiMessage| match message.data {
        0xbad => Err(Errno::new(libc::ENOENT)),
        data => Ok(MsiMessage { address: 0xab00_fee0_0000, data: data + 1, ..message }),
    };
    let router = Router::new(Iommu { spy: spy.clone(), translate }, []).unwrap();
    let mut msix = Msix::new((0..3).map(|_| gate(&router)), None).unwrap();
    let entry = |data| [0xfee0_0000, 0, data, 0];
    let table = vec![entry(1), entry(0xbad), entry(3)];
    msix.restore(&MsixState::new(1 << 15 | 2, table, vec![0])).unwrap();
    for again in [false, true] {
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        let report = batch.commit().unwrap();
        assert_eq!((report.failures.len(), report.counts.commits), (1, usize::from(!again)));
        let error = report.complete().unwrap_err().to_string();
        assert!(error.contains("data 0xbad"), "{error}");
    }
    let data: Vec<u8> = msi_entries(&spy.table.lock().unwrap()).iter().map(|e| e.1 .1).collect();
    assert_eq!(data, [2, 4]);
    assert_eq!(msix.route(0).unwrap().message().data, 1, "as the guest wrote it");
    // A pin's message as well, which fails alone, too; an entry as it is stays so.
    let mut batch = router.batch();
    let raw = FixedRoute::msi(6, message(0x60));
    let raw = FixedRoute::raw(*Router::new(Null(64), [raw]).unwrap().entries().first().unwrap());
    for route in [FixedRoute::msi(4, message(0x40)), FixedRoute::msi(5, message(0xbad)), raw] {
        batch.set_fixed(route.gsi(), [route]).unwrap();
    }
    let report = batch.commit().unwrap();
    assert_eq!((report.failures.len(), report.counts.commits), (1, 1));
    assert_eq!(
        (report.failures[0].gsi, report.failures[0].step),
        (5, Step::Message(message(0xbad)))
    );
    let address = |gsi| {
        let entries = router.entries();
        // SAFETY: plain data.
        entries.iter().find(|e| e.gsi == gsi).map(|e| unsafe { (e.u.msi.address_hi, e.u.msi.data) })
    };
    assert_eq!([4, 5, 6].map(address), [Some((0xab00, 0x41)), None, Some((0, 0x60))]);
}

#[test]
fn a_reset_forgets_what_waited() {
    let spy = Spy::new(Null(4096), usize::MAX, 0);
    let router = Router::new(spy.clone(), []).unwrap();
    let external = || Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
    for source in [gate(&router), external()] {
        let mut msix = Msix::new([source.clone()], None).unwrap();
        source.raise().unwrap();
        assert!(msix.is_pending(0));
        let saved = msix.state();
        msix.reset();
        assert!(!msix.is_pending(0));
        let _ = msix.set_control(1 << 15);
        assert_ne!(msix.state(), saved);
        // A state without pending bits leaves none that were there before.
        source.raise().unwrap();
        msix.restore(&MsixState::new(saved.control, saved.table.clone(), vec![0])).unwrap();
        assert!(!msix.is_pending(0));
        // And over a live vector nothing is loaded.
        let entry = [0xfee0_0000, 0, 0x41, 0];
        let on = MsixState::new(1 << 15, vec![entry], vec![0]);
        msix.restore(&on).unwrap();
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap();
        let refused =
            msix.restore(&MsixState::new(on.control, on.table.clone(), vec![1])).unwrap_err();
        assert!(refused.to_string().contains("live vectors"), "{refused}");
        assert_eq!(msix.state(), on);
        msix.reset();
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert!(msix.route(0).is_none_or(|route| route.phase() == Phase::Gone));
    }
    let source = gate(&router);
    let mut msi = Msi::new([source.clone()], None).unwrap();
    source.raise().unwrap();
    assert_eq!(msi.pending(), 1);
    msi.reset();
    assert_eq!(msi.pending(), 0);
}

/// A message that `translate` refuses fails alone, also if its vector is masked in the same batch,
/// whose eventfd is detached ahead of the commit.
#[test]
fn a_refused_message_does_not_take_the_irqfd_of_a_live_vector() {
    let translate = |message: MsiMessage| {
        (message.data < 100).then_some(message).ok_or(Errno::new(libc::EINVAL))
    };
    for (failures, after) in [(0, (Phase::Live, 1)), (1, (Phase::Masked, 0))] {
        let spy = Spy::new(Null(4096), usize::MAX, libc::ENOMEM);
        let router = Router::new(Iommu { spy: spy.clone(), translate }, []).unwrap();
        let mut batch = router.batch();
        let source = Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
        let route = batch.add(MsiMessage::x86(0, 1), source).unwrap();
        batch.commit().unwrap().complete().unwrap();
        // The detach works; to attach it again may not.
        spy.fail_next(1, failures);
        let mut batch = router.batch();
        batch.set_message(&route, MsiMessage::x86(0, 100)).unwrap();
        batch.mask(&route).unwrap();
        let report = batch.commit().unwrap();
        assert!(matches!(report.failures[0].step, Step::Message(_)), "{:?}", report.failures);
        assert_eq!(report.failures.len(), 1 + failures);
        assert_eq!((route.phase(), spy.attached.load(SeqCst)), after);
    }
}

/// `free()` counts what can be added: with a split irqchip the GSIs of the pins are no MSI vector's.
#[test]
fn as_many_routes_are_free_as_can_be_added() {
    let router = Router::new(Spy::with_limit(Null(4096), usize::MAX, 0, 64), []).unwrap();
    let mut batch = router.batch();
    batch.add_fixed(FixedRoute::hv_sint(40, 0, 1)).unwrap();
    let gate = || Source::gate(router.kernel()).unwrap();
    let mut routes = Vec::new();
    while router.free() > 0 {
        routes.push(batch.add(MsiMessage::x86(0, 1), gate()).unwrap());
    }
    assert_eq!(routes.len(), 39);
    let full = batch.add(MsiMessage::x86(0, 1), gate()).unwrap_err().to_string();
    assert!(full.contains("1 fixed, 39 MSI vectors; GSIs below 24"), "{full}");
    // A pin's GSI is still to be had.
    batch.add_fixed(FixedRoute::msi(3, MsiMessage::x86(0, 3))).unwrap();
}
