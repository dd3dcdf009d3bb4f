// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Against kernels that only record: batches, nesting, threads, registers.

use crate::kernels;

use kernels::{msi_entries, target, Null, Random, Spy};
use kvm_bindings::{kvm_irq_routing_entry, KVM_IRQ_ROUTING_MSI};
use msi_routes::{
    Batch, EventFd, FixedRoute, Msi, MsiMessage, MsiState, Msix, MsixState, Phase, Route,
    RouteError, Router, Source,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

const NEVER: usize = usize::MAX;

fn spy() -> (Arc<Spy>, Router) {
    let spy = Spy::new(Null(4096), NEVER, 0);
    let router = Router::new(spy.clone(), FixedRoute::pc_defaults()).unwrap();
    (spy, router)
}

fn external() -> Source {
    Source::external(EventFd::new(0o4000).unwrap()).unwrap()
}

fn add(batch: &mut Batch, vector: u8) -> Route {
    batch.add(MsiMessage::x86(0, vector), external()).unwrap()
}

#[test]
fn a_batch_is_one_commit_and_a_dropped_one_is_none() {
    let (spy, router) = spy();
    let mut batch = router.batch();
    let dropped: Vec<Route> = (0..65).map(|n| add(&mut batch, n)).collect();
    batch.add_fixed(FixedRoute::hv_sint(23 + 100, 0, 1)).unwrap();
    drop(batch);
    assert!(dropped.iter().all(|route| route.phase() == Phase::Gone));
    assert_eq!((spy.calls(), router.msi_routes(), router.free()), (0, 0, 4056));
    let mut batch = router.batch();
    let routes: Vec<Route> = (0..65).map(|n| add(&mut batch, n)).collect();
    let counts = batch.commit().unwrap().complete().unwrap();
    assert_eq!((counts.routes, counts.commits, counts.attached), (105, 1, 65));
    assert_eq!(spy.calls(), 66);
    let gsis: BTreeSet<u32> = routes.iter().map(Route::gsi).collect();
    assert_eq!(gsis, (24..89).collect());
    // Nothing to do is no call at all.
    let mut batch = router.batch();
    batch.set_message(&routes[3], routes[3].message()).unwrap();
    batch.unmask(&routes[3]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    router.batch().commit().unwrap().complete().unwrap();
    assert_eq!(spy.calls(), 66);
}

#[test]
fn of_two_changes_the_later_one_counts() {
    let (spy, router) = spy();
    let mut batch = router.batch();
    let a = add(&mut batch, 1);
    let b = add(&mut batch, 2);
    batch.set_message(&a, MsiMessage::x86(0, 9)).unwrap();
    batch.mask(&a).unwrap();
    batch.remove(&b).unwrap();
    let counts = batch.commit().unwrap().complete().unwrap();
    assert_eq!((counts.routes, counts.attached), (41, 0));
    assert_eq!((a.phase(), b.phase()), (Phase::Masked, Phase::Gone));
    assert_eq!(a.message(), MsiMessage::x86(0, 9));
    let mut batch = router.batch();
    batch.remove(&a).unwrap();
    batch.unmask(&a).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((a.phase(), spy.commits.load(SeqCst)), (Phase::Live, 1));
}

#[test]
fn batches_nest() {
    let (spy, router) = spy();
    let mut outer = router.batch();
    let a = add(&mut outer, 1);
    let mut inner = outer.nested();
    let b = add(&mut inner, 2);
    let mut innermost = inner.nested();
    let c = add(&mut innermost, 3);
    innermost.commit();
    let mut dropped = inner.nested();
    let d = add(&mut dropped, 4);
    dropped.remove(&a).unwrap();
    drop(dropped);
    inner.commit();
    assert_eq!(spy.calls(), 0);
    let counts = outer.commit().unwrap().complete().unwrap();
    assert_eq!((counts.commits, counts.routes, counts.attached), (1, 43, 3));
    let phases = [&a, &b, &c, &d].map(Route::phase);
    assert_eq!(phases, [Phase::Live, Phase::Live, Phase::Live, Phase::Gone]);
}

#[test]
fn batches_from_many_threads_all_take_effect() {
    let (spy, router) = spy();
    let kept: Vec<Route> = std::thread::scope(|scope| {
        let work = |seed: u64| {
            let router = router.clone();
            move || {
                let mut random = Random(seed + 1);
                let mut kept: Vec<Route> = Vec::new();
                for _ in 0..100 {
                    let mut batch = router.batch();
                    let new: Vec<Route> =
                        (0..random.below(4)).map(|_| add(&mut batch, seed as u8)).collect();
                    let gone = kept.len().min(random.below(3));
                    kept[..gone].iter().for_each(|route| batch.remove(route).unwrap());
                    if random.below(3) > 0 {
                        batch.commit().unwrap().complete().unwrap();
                        kept.drain(..gone);
                        kept.extend(new);
                    }
                }
                kept
            }
        };
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(work(seed))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    router.sweep().unwrap().complete().unwrap();
    let expected: BTreeSet<_> = kept.iter().map(|r| (r.gsi(), target(r.message()))).collect();
    assert_eq!(expected.len(), kept.len(), "each has a GSI of its own");
    assert_eq!(msi_entries(&spy.table.lock().unwrap()), expected);
    assert_eq!((spy.attached.load(SeqCst), router.msi_routes()), (kept.len(), kept.len()));
}

#[test]
fn a_route_in_somebody_elses_batch_is_reported_not_touched() {
    let (_, router) = spy();
    let mut first = router.batch();
    let route = add(&mut first, 1);
    let mut second = router.batch();
    second.mask(&route).unwrap();
    let other = add(&mut second, 2);
    let report = second.commit().unwrap();
    assert_eq!((report.failures.len(), other.phase()), (1, Phase::Live));
    assert!(
        report.failures[0].to_string().contains("if another batch adds the route"),
        "{}",
        report.failures[0]
    );
    first.commit().unwrap().complete().unwrap();
    assert_eq!(route.phase(), Phase::Live);
    let (_, elsewhere) = spy();
    assert!(matches!(elsewhere.batch().mask(&route), Err(RouteError::OtherVm { gsi: 24 })));
}

#[test]
fn a_refused_table_undoes_masks_and_says_which_it_could_not() {
    let (spy, router) = spy();
    let mut batch = router.batch();
    let routes: Vec<Route> = (0..3).map(|n| add(&mut batch, n)).collect();
    batch.commit().unwrap().complete().unwrap();
    let refused = |failures: usize| {
        // Two detaches; then the table is refused, and perhaps the first attach too.
        spy.fail_next(2, failures);
        let mut batch = router.batch();
        batch.mask(&routes[0]).unwrap();
        batch.remove(&routes[1]).unwrap();
        batch.set_message(&routes[2], MsiMessage::x86(0, 99)).unwrap();
        let new = add(&mut batch, 4);
        let error = batch.commit().unwrap_err();
        assert_eq!((new.phase(), routes[2].message().data), (Phase::Gone, 2));
        error
    };
    let error = refused(1);
    assert!(error.not_restored.is_empty() && error.to_string().contains("undone"), "{error}");
    assert!(routes.iter().all(|route| route.phase() == Phase::Live));
    assert_eq!(spy.attached.load(SeqCst), 3);
    let error = refused(2);
    assert!(error.to_string().contains("stay masked (1;"), "{error}");
    assert_eq!(routes[0].phase(), Phase::Masked);
    let mut batch = router.batch();
    batch.unmask(&routes[0]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((routes[0].phase(), spy.attached.load(SeqCst)), (Phase::Live, 3));
}

#[test]
fn tables_agree_when_the_table_without_a_failed_vector_is_refused_too() {
    let (spy, router) = spy();
    let mut batch = router.batch();
    let route = add(&mut batch, 0);
    // The table is taken, the attach fails, and so does the table without the vector.
    spy.fail_next(1, 2);
    let report = batch.commit().unwrap();
    assert_eq!((spy.calls(), report.failures.len(), route.phase()), (3, 1, Phase::Gone));
    let kernels = || msi_entries(&spy.table.lock().unwrap());
    assert_eq!((kernels(), kernels().len()), (msi_entries(&router.entries()), 1));
    assert_eq!(router.msi_routes(), 0);
    router.sweep().unwrap().complete().unwrap();
    assert_eq!((kernels(), kernels().len()), (msi_entries(&router.entries()), 0));
}

#[test]
fn the_limit_is_met_when_adding() {
    let spy = Spy::with_limit(Null(4096), NEVER, 0, 50);
    let router = Router::new(spy, FixedRoute::pc_defaults()).unwrap();
    let mut batch = router.batch();
    let routes: Vec<Route> = (0..10).map(|n| add(&mut batch, n)).collect();
    let full = batch.add(MsiMessage::default(), external()).unwrap_err();
    let text = full.to_string();
    assert!(
        text.contains("this VM 50 interrupt routes") && text.contains("40 fixed, 10 MSI"),
        "{text}"
    );
    batch.commit().unwrap().complete().unwrap();
    drop(routes);
    assert_eq!(router.free(), 10);
    let small = Router::new(Null(30), FixedRoute::pc_defaults());
    assert!(matches!(small, Err(RouteError::Full { limit: 30, .. })));
    let none = Router::new(Null(0), []).unwrap();
    assert!(matches!(
        none.batch().add(MsiMessage::default(), external()),
        Err(RouteError::Full { .. })
    ));
}

#[test]
fn routes_of_other_kinds_outlive_everything() {
    let (spy, router) = spy();
    let mut batch = router.batch();
    batch.add_fixed(FixedRoute::xen_evtchn(200, 5, 0, u32::MAX)).unwrap();
    batch.add_fixed(FixedRoute::hv_sint(24, 1, 2)).unwrap();
    batch.commit().unwrap().complete().unwrap();
    let fixed = |entries: Vec<kvm_irq_routing_entry>| -> BTreeSet<(u32, u32, [u32; 3])> {
        let content = |e: kvm_irq_routing_entry| {
            // SAFETY: all members are plain data, made from zeroes.
            let u = unsafe { e.u.xen_evtchn };
            (e.gsi, e.type_, [u.port, u.vcpu, u.priority])
        };
        entries.into_iter().filter(|e| e.type_ != KVM_IRQ_ROUTING_MSI).map(content).collect()
    };
    let before = fixed(spy.table.lock().unwrap().clone());
    assert_eq!(before.len(), 42);
    let mut random = Random(7);
    let mut routes = Vec::new();
    for _ in 0..200 {
        let mut batch = router.batch();
        routes.push(add(&mut batch, 7));
        batch.commit().unwrap().complete().unwrap();
        if random.below(2) == 0 {
            drop(routes.swap_remove(random.below(routes.len())));
        }
        assert_eq!(fixed(spy.table.lock().unwrap().clone()), before);
    }
    assert!(routes.iter().all(|route| route.gsi() > 24 && route.gsi() != 200));
    let taken = router.batch().add_fixed(FixedRoute::hv_sint(200, 0, 0));
    assert!(matches!(taken, Err(RouteError::GsiTaken { gsi: 200 })));
}

#[test]
fn a_blocking_eventfd_is_refused() {
    let blocking = Source::external(EventFd::new(0).unwrap()).unwrap_err();
    assert!(blocking.to_string().contains("EFD_NONBLOCK"), "{blocking}");
}

#[derive(Debug, Clone)]
enum Change {
    Add(u8, bool),
    Message(usize, u8),
    Mask(usize),
    Unmask(usize),
    Remove(usize),
    Drop(usize),
}

fn change() -> impl Generate<Value = Change> {
    prop_oneof![
        3 => any::<(u8, bool)>().prop_map(|(v, live)| Change::Add(v, live)),
        2 => any::<(usize, u8)>().prop_map(|(r, v)| Change::Message(r, v)),
        1 => any::<usize>().prop_map(Change::Mask),
        1 => any::<usize>().prop_map(Change::Unmask),
        1 => any::<usize>().prop_map(Change::Remove),
        1 => any::<usize>().prop_map(Change::Drop),
    ]
}

/// What a route should be: its vector, and whether it is live.
type Wanted = BTreeMap<u32, (u8, bool)>;

type Edit = fn(&mut Batch, &Route) -> Result<(), RouteError>;

fn stage(batch: &mut Batch, change: &Change, routes: &mut Vec<Route>, wanted: &mut Wanted) {
    let pick = |n: usize, routes: &Vec<Route>| routes.get(n % routes.len().max(1)).cloned();
    let (n, edit): (usize, Edit) = match *change {
        Change::Add(vector, live) => {
            let message = MsiMessage::x86(0, vector);
            let add = if live { Batch::add } else { Batch::add_masked };
            let route = add(batch, message, external()).unwrap();
            wanted.insert(route.gsi(), (vector, live));
            return routes.push(route);
        }
        Change::Message(n, vector) => {
            let Some(route) = pick(n, routes) else { return };
            batch.set_message(&route, MsiMessage::x86(0, vector)).unwrap();
            wanted.get_mut(&route.gsi()).unwrap().0 = vector;
            return;
        }
        Change::Mask(n) => (n, Batch::mask),
        Change::Unmask(n) => (n, Batch::unmask),
        Change::Remove(n) => (n, Batch::remove),
        Change::Drop(_) => return,
    };
    let Some(route) = pick(n, routes) else { return };
    edit(batch, &route).unwrap();
    match change {
        Change::Remove(_) => {
            wanted.remove(&route.gsi());
            routes.retain(|r| r.gsi() != route.gsi());
        }
        _ => wanted.get_mut(&route.gsi()).unwrap().1 = matches!(change, Change::Unmask(_)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Committed batches have their effect, dropped and refused ones none.
    #[test]
    fn batches_are_transactions(
        batches in proptest::collection::vec(
            (proptest::collection::vec(change(), 0..8), 0u8..4),
            1..20,
        ),
        fail_at in 0usize..40,
    ) {
        let spy = Spy::new(Null(4096), fail_at, 22);
        let router = Router::new(spy.clone(), []).unwrap();
        let (mut routes, mut wanted): (Vec<Route>, Wanted) = Default::default();
        for (changes, end) in batches {
            if let Some(Change::Drop(n)) = changes.first() {
                if !routes.is_empty() {
                    let route = routes.swap_remove(n % routes.len());
                    wanted.remove(&route.gsi());
                }
            }
            let mut batch = router.batch();
            let (mut new_routes, mut new) = (routes.clone(), wanted.clone());
            if end == 0 {
                let mut inner = batch.nested();
                changes.iter().for_each(|c| stage(&mut inner, c, &mut new_routes, &mut new));
                inner.commit();
            } else {
                changes.iter().for_each(|c| stage(&mut batch, c, &mut new_routes, &mut new));
            }
            if end == 1 {
                drop(batch);
            } else if let Ok(report) = batch.commit() {
                for failure in &report.failures {
                    // As it was before, or not at all.
                    let gsi = failure.gsi;
                    match wanted.get(&gsi) {
                        Some(before) => {
                            new.insert(gsi, *before);
                            if !new_routes.iter().any(|r| r.gsi() == gsi) {
                                new_routes.push(failure.route.clone().unwrap());
                            }
                            let message = failure.route.as_ref().unwrap().message();
                            new.get_mut(&gsi).unwrap().0 = target(message).1;
                        }
                        None => {
                            new.remove(&gsi);
                            new_routes.retain(|r| r.gsi() != gsi);
                        }
                    }
                }
                (routes, wanted) = (new_routes, new);
            }
            let phases: Wanted = routes
                .iter()
                .map(|r| (r.gsi(), (target(r.message()).1, r.phase() == Phase::Live)))
                .collect();
            prop_assert_eq!(&phases, &wanted);
        }
        spy.mend();
        router.sweep().unwrap().complete().unwrap();
        let table = msi_entries(&router.entries());
        let expected: BTreeSet<_> = wanted.iter().map(|(g, (v, _))| (*g, (0, *v))).collect();
        prop_assert_eq!(&table, &expected);
        if spy.commits.load(SeqCst) > 0 {
            prop_assert_eq!(&msi_entries(&spy.table.lock().unwrap()), &expected);
        }
        let live = wanted.values().filter(|(_, live)| *live).count();
        prop_assert_eq!(spy.attached.load(SeqCst), live);
        drop(routes);
        router.sweep().unwrap().complete().unwrap();
        prop_assert_eq!((router.msi_routes(), spy.attached.load(SeqCst)), (0, 0));
    }

    /// Whatever a guest writes and a migration stream holds.
    #[test]
    fn registers_take_anything(
        vectors in 1usize..70,
        accesses in proptest::collection::vec(
            (prop_oneof![0u64..1200, any::<u64>()], proptest::collection::vec(any::<u8>(), 0..17)),
            0..60,
        ),
        control in any::<u16>(),
        table in proptest::collection::vec(any::<[u32; 4]>(), 0..70),
        pba in proptest::collection::vec(any::<u64>(), 0..3),
    ) {
        let (_, router) = spy();
        let mut msix = Msix::new((0..vectors).map(|_| external()), Some(3)).unwrap();
        let state = MsixState::new(control, table, pba);
        prop_assert_eq!(msix.restore(&state).is_ok(), state.table.len() == vectors
            && state.pba.len() == vectors.div_ceil(64)
            && usize::from(control & 0x7ff) + 1 == vectors);
        let _ = msix.set_control(control);
        for (offset, data) in accesses {
            let mut read = data.clone();
            msix.read_pba(offset, &mut read);
            msix.read_table(offset, &mut read);
            if msix.write_table(offset, &data) {
                msix.read_table(offset, &mut read);
                prop_assert!(read == data || offset % 16 + data.len() as u64 == 16);
                let mut batch = router.batch();
                msix.sync_vector(msix.vector_at(offset).unwrap(), &mut batch).unwrap();
                batch.commit().unwrap().complete().unwrap();
            }
        }
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        // Idempotent, in the same batch and after it.
        msix.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap();
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        prop_assert!(batch.is_empty());
        let on = control >> 14 == 2;
        for (n, entry) in msix.state().table.iter().enumerate() {
            let live = msix.route(n).is_some_and(|route| route.phase() == Phase::Live);
            prop_assert_eq!(live, on && entry[3] == 0);
        }
    }

    #[test]
    fn msi_registers_take_anything(
        log2 in 0u32..6,
        control in any::<u16>(),
        address in any::<u64>(),
        (data, mask, pending) in any::<(u16, u32, u32)>(),
    ) {
        let (_, router) = spy();
        let count = 1usize << log2;
        let mut msi = Msi::new((0..count).map(|_| external()), None).unwrap();
        let mut state = MsiState::new(control, address, data);
        (state.mask, state.pending) = (mask, pending);
        prop_assert_eq!(msi.restore(&state).is_ok(), u32::from(control >> 1 & 7) == log2);
        let _ = (msi.set_control(control), msi.set_message(address, data), msi.set_mask(mask));
        let mut batch = router.batch();
        msi.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap();
        let allocated = (1u32 << (control >> 4 & 7)).min(count as u32);
        let live = |n: &u32| msi.route(*n as usize).is_some_and(|r| r.phase() == Phase::Live);
        for n in 0..count as u32 {
            let wanted = control & 1 == 1 && n < allocated && mask >> n & 1 == 0;
            prop_assert_eq!(live(&n), wanted);
            if wanted {
                let message = msi.route(n as usize).unwrap().message();
                prop_assert_eq!(message.data, u32::from(data) / allocated * allocated + n);
            }
        }
    }
}

#[test]
fn impossible_capabilities_are_refused() {
    assert!(Msix::new([], None).is_err());
    let too_many = Msi::new((0..3).map(|_| external()), None).unwrap_err();
    assert_eq!((too_many.expected, too_many.found), (4, 3));
    assert!(Msi::new([], None).is_err());
}
