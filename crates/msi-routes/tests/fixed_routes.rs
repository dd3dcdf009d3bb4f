// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Fixed routes beside MSI routes: GSIs change hands, the table is full, pins change.

use crate::kernels;

use kernels::{Null, Spy};
use msi_routes::{EventFd, FixedRoute, MsiMessage, Phase, Route, RouteError, Router, Source};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

fn spy(limit: usize) -> (Arc<Spy>, Router) {
    let spy = Spy::with_limit(Null(4096), usize::MAX, libc::ENOMEM, limit);
    let router = Router::new(spy.clone(), FixedRoute::pc_defaults()).unwrap();
    (spy, router)
}

fn add(router: &Router, count: u8) -> Vec<Route> {
    let mut batch = router.batch();
    let external = || Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
    let add = |n| batch.add(MsiMessage::x86(0, n), external()).unwrap();
    let routes = (0..count).map(add).collect();
    batch.commit().unwrap().complete().unwrap();
    routes
}

fn entries_of(router: &Router, gsi: u32) -> usize {
    router.entries().iter().filter(|e| e.gsi == gsi).count()
}

#[test]
fn a_fixed_route_takes_the_gsi_of_a_dropped_msi_route() {
    let (spy, router) = spy(4096);
    drop(add(&router, 1));
    // Refused first: what was there is there again, and the next one is right as well.
    for refused in [true, false, false] {
        spy.fail_next(0, usize::from(refused));
        let mut batch = router.batch();
        batch.add_fixed(FixedRoute::hv_sint(24, 0, 1)).unwrap();
        assert_eq!(batch.commit().is_err(), refused);
        assert_eq!(entries_of(&router, 24), 1);
        if !refused {
            let mut batch = router.batch();
            batch.remove_fixed(24).unwrap();
            batch.commit().unwrap().complete().unwrap();
            assert_eq!(entries_of(&router, 24), 0);
        }
    }
    assert_eq!(router.entries().len(), 40);
}

#[test]
fn a_nearly_full_table_with_dropped_routes_takes_a_fixed_one() {
    let (_, router) = spy(50);
    let mut routes = add(&router, 10);
    routes.pop();
    let mut batch = router.batch();
    batch.add_fixed(FixedRoute::hv_sint(40, 0, 1)).unwrap();
    assert_eq!(batch.commit().unwrap().complete().unwrap().routes, 50);
    assert_eq!(entries_of(&router, 40), 1);
    assert!(routes.iter().all(|route| route.phase() == Phase::Live));
    let full = router.batch().add_fixed(FixedRoute::hv_sint(41, 0, 1));
    assert!(matches!(full, Err(RouteError::Full { limit: 50, .. })), "{full:?}");
}

/// A pin's entry, as the kernel has it.
fn data_of(spy: &Spy, gsi: u32) -> Vec<u32> {
    let table = spy.table.lock().unwrap();
    // SAFETY: plain data, and an MSI entry.
    table.iter().filter(|e| e.gsi == gsi).map(|e| unsafe { e.u.msi.data }).collect()
}

#[test]
fn a_pin_changes_without_a_moment_without_a_route() {
    let spy = Spy::new(Null(4096), usize::MAX, libc::ENOMEM);
    // A split irqchip: the IO-APIC's pins are messages.
    let pin = |data| FixedRoute::msi(4, MsiMessage { data, ..MsiMessage::x86(0, 0) });
    let router = Router::with_first_gsi(spy.clone(), [pin(0x30)], 0).unwrap();
    let mut batch = router.batch();
    batch.set_fixed(4, [pin(0x31)]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((data_of(&spy, 4), spy.commits.load(SeqCst)), (vec![0x31], 1));
    // As two changes, which are one.
    let mut batch = router.batch();
    batch.remove_fixed(4).unwrap();
    batch.add_fixed(pin(0x32)).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((data_of(&spy, 4), spy.commits.load(SeqCst)), (vec![0x32], 2));
    // Refused or forgotten, it is as before, and can be tried again.
    for forgotten in [true, false] {
        let mut batch = router.batch();
        batch.set_fixed(4, [pin(0x33)]).unwrap();
        spy.fail_next(0, 1);
        if forgotten {
            drop(batch);
        } else {
            drop(batch.commit().unwrap_err());
        }
        spy.mend();
        assert_eq!((data_of(&spy, 4), router.free()), (vec![0x32], 4095));
    }
    let mut batch = router.batch();
    batch.set_fixed(4, []).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((router.free(), router.entries().len()), (4096, 0));
}

#[test]
fn changes_of_one_gsi_by_two_batches_are_counted_once() {
    let (_, router) = spy(41);
    let pins = || [FixedRoute::irqchip(3, 0, 3), FixedRoute::irqchip(3, 2, 7)];
    let (mut a, mut b) = (router.batch(), router.batch());
    a.set_fixed(3, pins()).unwrap();
    b.set_fixed(3, []).unwrap();
    // What b would free may be taken again by a.
    assert_eq!(router.free(), 1);
    b.commit().unwrap().complete().unwrap();
    assert_eq!((router.free(), router.entries().len()), (1, 38));
    a.commit().unwrap().complete().unwrap();
    assert_eq!((router.free(), router.entries().len()), (1, 40));
    let twice = router.batch().set_fixed(3, [pins()[0], pins()[0]]);
    assert!(matches!(twice, Err(RouteError::GsiTaken { gsi: 3 })));
    let other = router.batch().set_fixed(4, pins());
    assert!(matches!(other, Err(RouteError::GsiTaken { gsi: 4 })));
    let routes = add(&router, 1);
    let msi = router.batch().set_fixed(routes[0].gsi(), []);
    assert!(matches!(msi, Err(RouteError::GsiTaken { gsi: 24 })));
}
