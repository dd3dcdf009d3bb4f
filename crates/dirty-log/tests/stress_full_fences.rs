// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The same, as where membarrier(2) is missing or refused.

mod common;

#[test]
fn every_mark_is_in_one_harvest() {
    dirty_log::use_full_fences().unwrap();
    common::stress();
    assert_eq!(dirty_log::fences(), dirty_log::Fences::Full);
}
