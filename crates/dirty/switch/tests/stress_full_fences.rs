// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The same, as where membarrier(2) is missing or refused.

mod common;

#[test]
fn every_mark_is_in_one_harvest() {
    vmeter_dirty_switch::use_full_fences().unwrap();
    common::stress();
    assert_eq!(vmeter_dirty_switch::fences(), vmeter_dirty_switch::Fences::Full);
}
