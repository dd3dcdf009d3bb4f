// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Marks and harvests at full speed, with the fences that this host gives.

mod common;

#[test]
fn every_mark_is_in_one_harvest() {
    common::stress();
    println!("{:?} fences", vmeter_dirty_switch::fences());
}
