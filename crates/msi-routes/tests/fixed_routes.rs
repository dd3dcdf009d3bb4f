//! Fixed routes beside MSI routes: GSIs change hands, the table is full, pins change.

mod common;

use common::{Null, Spy};
use msi_routes::{EventFd, FixedRoute, MsiMessage, Phase, Route, RouteError, Router, Source};
use std::sync::Arc;

fn spy(limit: usize) -> (Arc<Spy>, Router) {
    let spy = Spy::with_limit(Null(4096), usize::MAX, libc::EINVAL, limit);
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
